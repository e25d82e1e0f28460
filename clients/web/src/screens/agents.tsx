/** The person's own agents, and the link that leads to another's. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { components } from "@blindpipe/client";
import { ask, Button, Fault, Field, useAction } from "../parts/action.js";
import { t } from "../i18n/index.js";
import { client } from "../model/phase.js";
import { refreshConversations } from "../model/chats.js";
import { go } from "../router.js";

type Agent = components["schemas"]["Agent"];
type Created = components["schemas"]["CreatedAgent"];

export function Agents(): JSX.Element {
  const action = useAction();
  const agents = useSignal<readonly Agent[]>([]);
  const name = useSignal("");
  const created = useSignal<Created | null>(null);
  const { http } = client().account;

  const refresh = async (): Promise<void> => {
    const found: Agent[] = [];
    for await (const agent of http.pages<Agent>("/agents")) found.push(agent);
    agents.value = found;
  };
  useEffect(() => void action.run(refresh), []);

  const make = async (): Promise<void> => {
    const body = { display_name: name.value };
    created.value = await http.data<Created>({ method: "POST", path: "/agents", body });
    name.value = "";
    await refresh();
  };
  const remove = async (agent: Agent): Promise<void> => {
    if (!(await ask(t("delete_agent_ask", { name: agent.display_name })))) return;
    await http.data({ method: "DELETE", path: `/agents/${agent.agent_id}` });
    await refresh();
  };
  return (
    <section class="page" aria-label={t("agents")}>
      <h1>{t("agents")}</h1>
      {agents.value.length === 0 && <p class="hint">{t("no_agents")}</p>}
      <ul>
        {agents.value.map((agent) => (
          <li key={agent.agent_id} class="row">
            <a href={`#/agents/${agent.agent_id}`}>
              <bdi>{agent.display_name}</bdi>
            </a>
            <small>{agent.state}</small>
            <Button action={action} onPress={() => openAgent(agent.agent_id)}>
              {t("chat")}
            </Button>
            <Button action={action} kind="quiet" onPress={() => remove(agent)}>
              {t("delete")}
            </Button>
          </li>
        ))}
      </ul>
      <Fault of={action} />
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void action.run(make);
        }}
      >
        <h2>{t("new_agent")}</h2>
        <Field label={t("agent_name")} value={name} />
        <button class="primary" disabled={action.isRunning.value}>
          {t("make")}
        </button>
      </form>
      {created.value && <Token created={created.value} />}
    </section>
  );
}

function Token({ created }: { readonly created: Created }): JSX.Element {
  const action = useAction();
  const text = `BLINDPIPE_URL=${location.origin}\nBLINDPIPE_AGENT_ID=${created.agent_id}\nBLINDPIPE_TOKEN=${created.token}`;
  return (
    <div class="card" role="status">
      <p>{t("token_once")}</p>
      <pre tabIndex={0}>{text}</pre>
      <Button action={action} onPress={() => navigator.clipboard.writeText(text)}>
        {t("copy")}
      </Button>
      <Fault of={action} />
    </div>
  );
}

const show = (id: string): void => go(`c/${id}`);

async function openAgent(agentId: string, keyId?: string, onOpen = show): Promise<void> {
  const conversation = await client().openAgent(agentId, keyId === undefined ? {} : { keyId });
  await refreshConversations();
  onOpen(conversation.id);
}

export interface AgentLinkProps {
  readonly agentId: string;
  readonly keyId: string | undefined;
  /** Goes to the conversation without it. */
  readonly onOpen?: (conversationId: string) => void;
}

/** A page anywhere may lead here, so nothing is opened before the person agrees. */
export function AgentLink({ agentId, keyId, onOpen }: AgentLinkProps): JSX.Element {
  const action = useAction();
  return (
    <section class="page" aria-label={t("open_link")}>
      <h1>{t("open_link")}</h1>
      {keyId !== undefined && <p>{t("open_link_lead")}</p>}
      <p>
        <code>{agentId}</code>
      </p>
      <Fault of={action} />
      <Button kind="primary" action={action} onPress={() => openAgent(agentId, keyId, onOpen)}>
        {t("go_on")}
      </Button>
    </section>
  );
}

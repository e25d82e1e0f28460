/** What agents have read. */
import type { JSX } from "preact";
import type { components } from "@blindpipe/client";
import { Fault } from "../../parts/action.js";
import { t, time, type Texts } from "../../i18n/index.js";
import { conversations } from "../../model/chats.js";
import { client } from "../../model/phase.js";
import { useLoaded } from "./load.js";

type Access = components["schemas"]["Access"];

const MAX_ACCESSES_SHOWN = 100;

/** The words for what was read. */
const KINDS: Readonly<Record<Access["kind"], keyof Texts>> = {
  push: "read_events",
  poll: "read_events",
  history: "read_messages",
  conversation: "read_conversation",
  conversation_list: "read_conversation",
  keys: "read_keys",
  group_keys: "read_keys",
  object: "read_file",
  tool_call: "read_call",
  approval: "read_decision",
};

function agentName(id: string): string {
  const everybody = conversations.value.flatMap((info) => info.members ?? []);
  return everybody.find((member) => member.principal_id === id)?.display_name ?? id;
}

export function AccessLog(): JSX.Element {
  const query = { limit: MAX_ACCESSES_SHOWN };
  const { value, action } = useLoaded<readonly Access[]>(() =>
    client().account.http.data({ method: "GET", path: "/grants/access-log", query }),
  );
  return (
    <>
      {value.value?.length === 0 && <p class="hint">{t("no_access")}</p>}
      <ul>
        {value.value?.map((row) => (
          <li key={row.access_id} class="row">
            <time dateTime={row.at}>{time(row.at)}</time>
            <bdi>{agentName(row.agent_id)}</bdi>
            <small>{t(KINDS[row.kind])}</small>
          </li>
        ))}
      </ul>
      <Fault of={action} />
    </>
  );
}

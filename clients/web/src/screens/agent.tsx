/** The page of an agent: its name, and the manifest that others see. */
import { type Signal, useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { ApiError, type components } from "@blindpipe/client";
import { type Action, Fault, Field, useAction, words } from "../parts/action.js";
import { visible } from "../parts/visible.js";
import { HARM_TEXTS, t } from "../i18n/index.js";
import { client } from "../model/phase.js";
import { useLoaded } from "./settings/load.js";

type Agent = components["schemas"]["Agent"];
type Manifest = components["schemas"]["Manifest"];
type Updated = components["schemas"]["UpdatedManifest"];
type FieldFault = { readonly path: string; readonly message: string };

const EMPTY: Manifest = { description: "", tools: [], permission_scopes: [] };

export function AgentPage({ id }: { readonly id: string }): JSX.Element {
  // The owner gets the whole agent. Others get its card, which names no owner.
  const { value, action, load } = useLoaded(async () => (await client().agents.get(id)) as Agent);
  const agent = value.value;
  const isOwn = agent?.owner_user_id === client().userId;
  return (
    <section class="page" aria-label={agent?.display_name ?? t("agents")}>
      <p class="up">
        <a href="#/agents">{t("agents")}</a>
      </p>
      <h1>
        <bdi>{agent?.display_name ?? t("agents")}</bdi>
      </h1>
      <Fault of={action} />
      {agent && isOwn && <Described agent={agent} onSaved={load} />}
      {agent && (
        <>
          <h2>{t("manifest")}</h2>
          <p class="hint">{t("manifest_lead")}</p>
          <Declared manifest={agent.manifest ?? null} />
        </>
      )}
      {agent && isOwn && <Change agent={agent} onSaved={load} />}
    </section>
  );
}

interface PartProps {
  readonly agent: Agent;
  readonly onSaved: () => Promise<void>;
}

function Described({ agent, onSaved }: PartProps): JSX.Element {
  const action = useAction();
  const name = useSignal(agent.display_name);
  const description = useSignal(agent.description ?? "");
  const isSaved = useSignal(false);
  const save = async (): Promise<void> => {
    isSaved.value = false;
    await client().agents.update(agent.agent_id, { display_name: name.value, description: description.value });
    await onSaved();
    isSaved.value = true;
  };
  return (
    <Form action={action} onSubmit={save}>
      <Field label={t("agent_name")} value={name} />
      <Field label={t("description")} value={description} required={false} />
      <Fault of={action} />
      <Save action={action} isSaved={isSaved} label={t("save")} />
    </Form>
  );
}

/** A manifest in words. */
function Declared({ manifest }: { readonly manifest: Manifest | null }): JSX.Element {
  if (!manifest) return <p>{t("no_manifest")}</p>;
  return (
    <>
      {manifest.description && <p class="plain-text">{visible(manifest.description)}</p>}
      <h3>{t("manifest_scopes")}</h3>
      {manifest.permission_scopes.length === 0 && <p class="hint">{t("manifest_none")}</p>}
      <ul>
        {manifest.permission_scopes.map(({ scope, sensitivity, reason }) => (
          <li key={scope} class="row">
            <code>{visible(scope)}</code>
            <small>{t(HARM_TEXTS[sensitivity])}</small>
            {reason && <span class="plain-text">{visible(reason)}</span>}
          </li>
        ))}
      </ul>
      <h3>{t("manifest_tools")}</h3>
      {manifest.tools.length === 0 && <p class="hint">{t("manifest_none")}</p>}
      <ul>
        {manifest.tools.map(({ name, description, scope }) => (
          <li key={name} class="row">
            <code>{visible(name)}</code>
            {scope && <small>{t("tool_scope", { scope: visible(scope) })}</small>}
            {description && <span class="plain-text">{visible(description)}</span>}
          </li>
        ))}
      </ul>
    </>
  );
}

/** Only the agent's own token changes its manifest, so the page asks for it, and sends it with this call alone. */
function Change({ agent, onSaved }: PartProps): JSX.Element {
  const action = useAction();
  const text = useSignal(JSON.stringify(agent.manifest ?? EMPTY, null, 2));
  const token = useSignal("");
  const faults = useSignal<readonly FieldFault[]>([]);
  const warnings = useSignal<readonly FieldFault[]>([]);
  const isSaved = useSignal(false);
  const save = async (): Promise<void> => {
    isSaved.value = false;
    [faults.value, warnings.value] = [[], []];
    try {
      const updated = await put(agent, text.value, token.value.trim());
      [token.value, warnings.value] = ["", updated.warnings];
    } catch (error) {
      faults.value = faultsOf(error);
      return;
    }
    isSaved.value = true;
    await onSaved();
  };
  const shown = [...faults.value, ...warnings.value];
  return (
    <>
      <h2>{t("manifest_change")}</h2>
      <Form action={action} onSubmit={save}>
        <label class="field">
          <span>{t("manifest_json")}</span>
          <textarea
            class="json"
            rows={10}
            dir="ltr"
            spellcheck={false}
            autocapitalize="off"
            required
            aria-invalid={faults.value.length > 0}
            value={text.value}
            onInput={(event) => (text.value = event.currentTarget.value)}
          />
          <small>{t("manifest_hint")}</small>
        </label>
        <Field label={t("agent_token")} type="password" value={token} hint={t("agent_token_hint")} />
        <Fault of={action} />
        {shown.length > 0 && (
          <div class={faults.value.length > 0 ? "fault" : "hint"} role="alert">
            {shown.map(({ path, message }) => (
              <p key={path + message}>
                {path && <code>{path}</code>} {message}
              </p>
            ))}
          </div>
        )}
        <Save action={action} isSaved={isSaved} label={t("manifest_save")} />
      </Form>
    </>
  );
}

async function put({ agent_id, manifest_version }: Agent, text: string, token: string): Promise<Updated> {
  const manifest = JSON.parse(text) as Manifest;
  return client().account.http.data<Updated>({
    method: "PATCH",
    path: `/agents/${agent_id}`,
    body: { manifest, if_version: manifest_version },
    headers: { authorization: `Bearer ${token}` },
    // The person's own token stays out of this call.
    isPublic: true,
  });
}

/** The faults, each with its place in the manifest. */
function faultsOf(error: unknown): readonly FieldFault[] {
  if (error instanceof SyntaxError) return [{ path: "", message: t("manifest_no_json", { reason: error.message }) }];
  if (error instanceof ApiError) {
    const { fields } = error.params as { readonly fields?: readonly FieldFault[] };
    if (error.code === "VALIDATION_ERROR" && fields) return fields;
    if (error.code === "AGENT_TOKEN_INVALID" || error.code === "UNAUTHORIZED") return [{ path: "", message: t("agent_token_wrong") }];
    if (error.code === "VERSION_MISMATCH") return [{ path: "", message: t("manifest_changed") }];
  }
  return [{ path: "", message: words(error) }];
}

interface FormProps {
  readonly action: Action;
  readonly onSubmit: () => Promise<void>;
  readonly children: JSX.Element | readonly (JSX.Element | false)[];
}

function Form({ action, onSubmit, children }: FormProps): JSX.Element {
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        void action.run(onSubmit);
      }}
    >
      {children}
    </form>
  );
}

interface SaveProps {
  readonly action: Action;
  readonly isSaved: Signal<boolean>;
  readonly label: string;
}

function Save({ action, isSaved, label }: SaveProps): JSX.Element {
  return (
    <div class="row">
      <button class="primary" disabled={action.isRunning.value}>
        {label}
      </button>
      {isSaved.value && <span role="status">{t("saved")}</span>}
    </div>
  );
}

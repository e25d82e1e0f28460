/** The sign-ins, and what each has added: for the time after a theft. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { components } from "@blindpipe/client";
import { ask, Button, Fault, useAction } from "../../parts/action.js";
import { withProof } from "../../parts/proof.js";
import { t, time, type Texts } from "../../i18n/index.js";
import { client } from "../../model/phase.js";
import { useLoaded } from "./load.js";

type Session = components["schemas"]["Session"];
type Change = components["schemas"]["SessionChange"];

const KINDS: Readonly<Record<Change["kind"], keyof Texts>> = {
  agent: "added_agent",
  token: "added_token",
  webhook: "added_webhook",
  relation: "added_relation",
  instance: "added_instance",
  passkey: "added_passkey",
  share: "added_share",
};

export function Sessions(): JSX.Element {
  const { value, action, load } = useLoaded<readonly Session[]>(() => client().sessions.list());
  return (
    <>
      <h2>{t("sessions")}</h2>
      <p class="hint">{t("sessions_lead")}</p>
      <Fault of={action} />
      <ul>
        {value.value?.map((session) => (
          <li key={session.session_id}>
            <SessionRow session={session} onChange={load} />
          </li>
        ))}
      </ul>
    </>
  );
}

interface SessionRowProps {
  readonly session: Session;
  readonly onChange: () => Promise<void>;
}

function SessionRow({ session, onChange }: SessionRowProps): JSX.Element {
  const action = useAction();
  const changes = useSignal<readonly Change[] | null>(null);
  const name = session.display_name ?? session.device_id;
  const open = async (): Promise<void> => {
    changes.value = changes.value ? null : await client().sessions.changes(session.session_id);
  };
  const undo = async (undone: readonly Change[]): Promise<void> => {
    if (!(await ask(t("undo_ask", { count: undone.length })))) return;
    const ids = undone.map(({ id }) => id);
    if (!(await withProof(() => client().sessions.undo(session.session_id, ids)))) return;
    changes.value = await client().sessions.changes(session.session_id);
    await onChange();
  };
  return (
    <>
      <div class="row">
        <bdi>{name}</bdi>
        <small>
          {t("signed_in_at", { time: time(session.created_at) })} · {stateOf(session)}
        </small>
        {session.changes > 0 ? (
          <Button action={action} kind="quiet" expanded={changes.value !== null} onPress={open}>
            {t("added_count", { count: session.changes })}
          </Button>
        ) : (
          <small>{t("added_nothing")}</small>
        )}
      </div>
      {changes.value && (
        <ul class="inner">
          {changes.value.map((change) => (
            <li key={change.id} class="row">
              <span>
                {t(KINDS[change.kind])}: <bdi>{change.name}</bdi>
              </span>
              <time dateTime={change.at}>{time(change.at)}</time>
              <Button
                action={action}
                kind="danger"
                label={`${t("undo")}: ${change.name}`}
                onPress={() => undo([change])}
              >
                {t("undo")}
              </Button>
            </li>
          ))}
        </ul>
      )}
      <Fault of={action} />
    </>
  );
}

function stateOf(session: Session): string {
  if (session.current) return t("this_session");
  if (session.revoked_at) return t("session_ended", { time: time(session.revoked_at) });
  return t("session_live");
}

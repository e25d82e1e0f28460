/** The scopes of a grant: what an agent asks for, or may do. */
import type { JSX } from "preact";
import { Button, Fault, useAction } from "./action.js";
import { visible } from "./visible.js";
import { HARM_TEXTS, t, time } from "../i18n/index.js";
import { memberName } from "../model/names.js";
import { type Grant, refreshGrants } from "../model/requests.js";
import { client } from "../model/phase.js";

export function Scopes({ grant }: { readonly grant: Grant }): JSX.Element {
  const shown = grant.requested.filter(({ scope }) => grant.scopes.includes(scope));
  return (
    <ul class="inner">
      {shown.map(({ scope, sensitivity }) => (
        <li key={scope} class="row">
          <code>{visible(scope)}</code>
          <small>{t(HARM_TEXTS[sensitivity])}</small>
        </li>
      ))}
    </ul>
  );
}

/** A request that waits for the person's word. */
export function AskedGrant({ grant }: { readonly grant: Grant }): JSX.Element {
  const action = useAction();
  const decide = async (decision: "approve" | "deny"): Promise<void> => {
    await client().decideGrant(grant.grant_id, decision);
    await refreshGrants(client());
  };
  const agent = visible(memberName(grant.agent_id, grant.conversation_id));
  return (
    <article class="approval">
      <header>
        <a href={`#/c/${grant.conversation_id}`}>
          <bdi>{agent}</bdi>
        </a>
        {grant.expires_at && <small>{t("ends", { time: time(grant.expires_at) })}</small>}
      </header>
      <p>{t("grant_asks", { agent })}</p>
      {grant.reason && (
        <blockquote class="plain-text" dir="auto">
          {visible(grant.reason)}
        </blockquote>
      )}
      <Scopes grant={grant} />
      <p class="hint">
        {grant.ttl_seconds === null ? t("grant_until_revoked") : t("grant_for", { time: lengthOf(grant.ttl_seconds) })}
      </p>
      <div class="row">
        <Button action={action} kind="danger" onPress={() => decide("deny")}>
          {t("deny")}
        </Button>
        <Button action={action} kind="primary" onPress={() => decide("approve")}>
          {t("approve")}
        </Button>
      </div>
      <Fault of={action} />
    </article>
  );
}

const UNITS = [["day", 86_400], ["hour", 3_600], ["minute", 60]] as const;

/** The largest unit of time that fits without a rest, in the person's language. */
function lengthOf(seconds: number): string {
  const [unit, size] = UNITS.find(([, each]) => seconds % each === 0) ?? (["second", 1] as const);
  return new Intl.NumberFormat(navigator.language, { style: "unit", unit, unitDisplay: "long" }).format(seconds / size);
}

/** The permissions of agents, and how to end them. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { ask, Button, Fault, useAction } from "../../parts/action.js";
import { AskedGrant, Scopes } from "../../parts/permission.js";
import { t, time } from "../../i18n/index.js";
import { memberName, nameOf } from "../../model/names.js";
import { conversations } from "../../model/chats.js";
import { askedGrants, type Grant, grants, refreshGrants } from "../../model/requests.js";
import { client } from "../../model/phase.js";

export function Grants(): JSX.Element {
  const action = useAction();
  useEffect(() => void action.run(() => refreshGrants(client())), []);
  const held = grants.value.filter(({ status }) => status === "approved");
  return (
    <>
      <p class="hint">{t("grants_lead")}</p>
      {askedGrants.value.map((grant) => (
        <AskedGrant key={grant.grant_id} grant={grant} />
      ))}
      {held.length === 0 && <p class="hint">{t("no_grants")}</p>}
      <ul>
        {held.map((grant) => (
          <li key={grant.grant_id}>
            <Held grant={grant} />
          </li>
        ))}
      </ul>
      <Fault of={action} />
    </>
  );
}

function Held({ grant }: { readonly grant: Grant }): JSX.Element {
  const action = useAction();
  const agent = memberName(grant.agent_id, grant.conversation_id);
  const place = conversations.value.find((info) => info.conversation_id === grant.conversation_id);
  const revoke = async (): Promise<void> => {
    if (!(await ask(t("revoke_grant_ask", { agent })))) return;
    await client().revokeGrant(grant.grant_id);
    await refreshGrants(client());
  };
  return (
    <>
      <div class="row">
        <bdi>{agent}</bdi>
        <a href={`#/c/${grant.conversation_id}`}>
          {t("in_conversation")} <bdi>{place ? nameOf(place) : "…"}</bdi>
        </a>
        <small>{grant.expires_at ? t("ends", { time: time(grant.expires_at) }) : t("grant_no_end")}</small>
        <Button action={action} kind="danger" label={`${t("revoke_grant")}: ${agent}`} onPress={revoke}>
          {t("revoke_grant")}
        </Button>
      </div>
      <Scopes grant={grant} />
      <Fault of={action} />
    </>
  );
}

/** What agents ask the person to approve, in all conversations. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { ApprovalRequest } from "@blindpipe/client";
import { Button, Fault, Field, useAction } from "../parts/action.js";
import { Json } from "../parts/json.js";
import { AskedGrant } from "../parts/permission.js";
import { saveAs } from "../parts/file.js";
import { t, time } from "../i18n/index.js";
import { memberName } from "../model/names.js";
import { approvals, askedGrants, decided, refreshApprovals } from "../model/requests.js";
import { client } from "../model/phase.js";

export function Approvals(): JSX.Element {
  return (
    <section class="page" aria-label={t("approvals")}>
      <h1>{t("approvals")}</h1>
      {approvals.value.length + askedGrants.value.length === 0 && <p class="hint">{t("no_approvals")}</p>}
      {askedGrants.value.map((grant) => (
        <AskedGrant key={grant.grant_id} grant={grant} />
      ))}
      {approvals.value.map((request) => (
        <Open key={request.id} request={request} />
      ))}
      {decided.value.length > 0 && (
        <>
          <h2>{t("decided")}</h2>
          <ul>
            {decided.value.map((request) => (
              <li key={request.id}>
                <Closed request={request} />
              </li>
            ))}
          </ul>
        </>
      )}
    </section>
  );
}

function Open({ request }: { readonly request: ApprovalRequest }): JSX.Element {
  const action = useAction();
  const words = useSignal("");
  const { approval } = request;
  const decide = async (work: () => Promise<unknown>): Promise<void> => {
    await work();
    await refreshApprovals(client());
  };
  if (!request.question) {
    return (
      <article class="approval">
        <p class="fault">{t("unreadable_approval")}</p>
      </article>
    );
  }
  const isAsk = approval.kind === "ask";
  return (
    <article class="approval">
      <header>
        <a href={`#/c/${approval.conversation_id}`}>
          <bdi>{memberName(approval.agent_id, approval.conversation_id)}</bdi>
        </a>
        <small>{t("ends", { time: time(approval.expires_at) })}</small>
      </header>
      <p class="plain-text">{request.text}</p>
      <Json value={request.arguments} />
      {isAsk && request.choices.length === 0 && <Field label={t("message")} value={words} />}
      <div class="row">
        <Button action={action} kind="danger" onPress={() => decide(() => request.deny())}>
          {t("deny")}
        </Button>
        {isAsk && request.choices.length === 0 && (
          <Button action={action} kind="primary" onPress={() => decide(() => request.answer({ text: words.value }))}>
            {t("send")}
          </Button>
        )}
        {isAsk &&
          request.choices.map((choice) => (
            <Button key={choice} action={action} onPress={() => decide(() => request.answer(choice))}>
              {choice}
            </Button>
          ))}
        {!isAsk && (
          <Button action={action} kind="primary" onPress={() => decide(() => request.approve())}>
            {t("approve")}
          </Button>
        )}
      </div>
      <Fault of={action} />
    </article>
  );
}

const STATES = {
  open: "state_open",
  approved: "state_approved",
  answered: "state_answered",
  denied: "state_denied",
  expired: "state_expired",
  withdrawn: "state_withdrawn",
} as const;

function Closed({ request }: { readonly request: ApprovalRequest }): JSX.Element {
  const action = useAction();
  const { approval } = request;
  const save = async (): Promise<void> => {
    const receipt = await request.receipt();
    saveAs(JSON.stringify(receipt, null, 2), `receipt-${approval.approval_id}.json`);
  };
  return (
    <div class="row">
      <span class="plain-text">{request.text || t("undecryptable")}</span>
      <small>{t(STATES[approval.state])}</small>
      {request.question && approval.decisions.length > 0 && (
        <Button action={action} kind="quiet" onPress={save}>
          {t("receipt")}
        </Button>
      )}
      <Fault of={action} />
    </div>
  );
}

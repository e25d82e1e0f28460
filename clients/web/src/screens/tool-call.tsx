/** A tool call that waits for a word of the person. Deny has the focus, and silence denies. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { ToolRequest } from "@blindpipe/client";
import { Button, Dialog, Fault, useAction } from "../parts/action.js";
import { Json } from "../parts/json.js";
import { t } from "../i18n/index.js";
import { memberName } from "../model/names.js";
import { dismiss } from "../model/requests.js";

export function ToolCallDialog({ request }: { readonly request: ToolRequest }): JSX.Element {
  const action = useAction();
  const { call } = request;
  const seconds = useSecondsUntil(call.expires_at, () => dismiss(request));
  const agent = memberName(call.agent_id, call.conversation_id);
  const deny = async (): Promise<void> => {
    await request.deny();
    dismiss(request);
  };
  const allow = async (): Promise<void> => {
    await request.approve();
    await request.execute();
    dismiss(request);
  };
  return (
    <Dialog title={t("tool_asks", { agent, tool: call.tool })} onClose={() => void action.run(deny)}>
      <p>{t("tool_lead")}</p>
      <Json value={request.arguments} />
      {!request.isKnown && <p class="hint">{t("tool_no_run")}</p>}
      <p role="timer" class="ring">
        <progress max={30} value={Math.min(30, seconds)} aria-hidden="true" />
        {t("seconds_left", { count: seconds })}
      </p>
      <div class="row">
        <Button action={action} kind="danger" autofocus onPress={deny}>
          {t("deny")}
        </Button>
        <Button action={action} kind="plain" disabled={!request.isKnown} onPress={allow}>
          {t("allow_once")}
        </Button>
      </div>
      <Fault of={action} />
    </Dialog>
  );
}

function useSecondsUntil(end: string, onEnd: () => void): number {
  const left = (): number => Math.max(0, Math.ceil((Date.parse(end) - Date.now()) / 1000));
  const seconds = useSignal(left());
  useEffect(() => {
    const timer = setInterval(() => {
      seconds.value = left();
      if (seconds.value === 0) onEnd();
    }, 500);
    return () => clearInterval(timer);
  }, [end]);
  return seconds.value;
}

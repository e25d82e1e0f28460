/** A tool call that waits for a word of the person. Deny has the focus, and silence denies. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { Button, Dialog, Fault, useAction } from "../parts/action.js";
import { Json } from "../parts/json.js";
import { visible } from "../parts/visible.js";
import { t } from "../i18n/index.js";
import { memberName } from "../model/names.js";
import { dismiss, type ToolCallShown } from "../model/requests.js";

export function ToolCallDialog({ shown }: { readonly shown: ToolCallShown }): JSX.Element {
  const action = useAction();
  const { request } = shown;
  const { agent_id, conversation_id, request_id, tool, scope } = request.call;
  const end = (): void => dismiss(request_id);
  // A hidden character in a name could write another sentence here.
  const agent = visible(memberName(agent_id, conversation_id));
  const deny = async (): Promise<void> => {
    await request.deny();
    end();
  };
  const allow = async (): Promise<void> => {
    await request.approve();
    await request.execute();
    end();
  };
  return (
    <Dialog title={t("tool_asks", { agent, tool: visible(tool) })} onClose={() => void action.run(deny)}>
      {request.prompt && (
        <blockquote class="plain-text" dir="auto">
          {visible(request.prompt)}
        </blockquote>
      )}
      <p>{t("tool_lead")}</p>
      <Json value={request.arguments} />
      <p class="hint">{t("tool_scope", { scope: visible(scope) })}</p>
      <Ring shown={shown} onEnd={end} />
      <div class="row">
        <Button action={action} kind="danger" autofocus onPress={deny}>
          {t("deny")}
        </Button>
        <Button action={action} kind="plain" onPress={allow}>
          {t("allow_once")}
        </Button>
      </div>
      <Fault of={action} />
    </Dialog>
  );
}

const STEP_MS = 250;

/** The time that is left, as a ring that runs out and as a number. */
function Ring({ shown, onEnd }: { readonly shown: ToolCallShown; readonly onEnd: () => void }): JSX.Element {
  const { endsAt, patience } = shown;
  const left = useSignal(Math.max(0, endsAt - performance.now()));
  useEffect(() => {
    const timer = setInterval(() => {
      left.value = Math.max(0, endsAt - performance.now());
      if (left.value === 0) onEnd();
    }, STEP_MS);
    return () => clearInterval(timer);
  }, [endsAt]);
  const share = Math.round((100 * left.value) / patience);
  return (
    <p role="timer" class="ring">
      <svg viewBox="0 0 36 36" width="36" height="36" aria-hidden="true">
        <circle class="track" cx="18" cy="18" r="15" />
        <circle
          class="left"
          cx="18"
          cy="18"
          r="15"
          pathLength={100}
          stroke-dasharray={`${share} 100`}
          transform="rotate(-90 18 18)"
        />
      </svg>
      {t("seconds_left", { count: Math.ceil(left.value / 1000) })}
    </p>
  );
}

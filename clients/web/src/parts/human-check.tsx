/** The frame of the human check, while one waits. */
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Dialog } from "./action.js";
import { language, t } from "../i18n/first.js";
import { check } from "../model/human-check.js";

export function HumanCheckDialog(): JSX.Element | null {
  const frame = useRef<HTMLIFrameElement>(null);
  const now = check.value;
  useEffect(() => {
    if (!now) return;
    const hear = ({ data, origin, source }: MessageEvent<{ blindpipe?: unknown; token?: unknown }>): void => {
      if (origin !== now.origin || source !== frame.current?.contentWindow || data.blindpipe !== "check") return;
      now.end(typeof data.token === "string" ? data.token : null);
    };
    addEventListener("message", hear);
    return () => removeEventListener("message", hear);
  }, [now]);
  if (!now) return null;
  const ask = (): void => frame.current?.contentWindow?.postMessage({ blindpipe: "check", language }, now.origin);
  return (
    <Dialog title={t("human_check")} onClose={() => now.end(null)}>
      <iframe
        ref={frame}
        class="human-check"
        title={t("human_check")}
        src={`${now.origin}/app/check`}
        sandbox="allow-scripts allow-same-origin allow-forms allow-popups"
        onLoad={ask}
      />
      <div class="row">
        <button type="button" class="plain" autofocus onClick={() => now.end(null)}>
          {t("cancel")}
        </button>
      </div>
    </Dialog>
  );
}

/** A message that the service does not have yet. */
import type { JSX } from "preact";
import { words } from "./action.js";
import { t, time } from "../i18n/index.js";
import { isOnline } from "../model/line.js";
import { again, discard, type Waiting } from "../model/outbox.js";

export function Outgoing({ waiting }: { readonly waiting: Waiting }): JSX.Element {
  const { text, state, fault, createdAt } = waiting;
  return (
    <article class="message own outgoing" data-state={state} aria-label={t("outgoing")}>
      <header>
        <bdi>{t("you")}</bdi> <time dateTime={createdAt}>{time(createdAt)}</time>
      </header>
      <p class="plain-text">{text}</p>
      {state === "failed" ? (
        <>
          <p class="fault" role="alert">
            {words(fault)}
          </p>
          <div class="row">
            <button type="button" class="plain" onClick={() => again(waiting)}>
              {t("try_again")}
            </button>
            <button type="button" class="quiet" onClick={() => discard(waiting)}>
              {t("discard")}
            </button>
          </div>
        </>
      ) : (
        <small>{isOnline.value ? t("sending") : t("waits_for_line")}</small>
      )}
    </article>
  );
}

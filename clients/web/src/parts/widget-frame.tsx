/** The frame of the widget, which is there while nobody is signed in too. */
import type { ComponentChildren, JSX } from "preact";
import { t } from "../i18n/first.js";
import { route } from "../router.js";

// The page around it can change the address later, and changes nothing by it.
export const firstRoute = route.peek();

/** The way into the app stands above it. */
export function WidgetFrame({ children }: { readonly children: ComponentChildren }): JSX.Element {
  const hash = firstRoute.screen === "agent-link" ? `#/a/${[firstRoute.agentId, firstRoute.keyId].filter(Boolean).join("/")}` : "";
  return (
    <div class="widget">
      <p class="bar">
        <a href={`/app${hash}`} target="_blank" rel="noopener">
          {t("open_in_app")}
        </a>
      </p>
      {children}
    </div>
  );
}

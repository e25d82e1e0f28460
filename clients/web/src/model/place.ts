/** Where the app runs: as a page of its own, or as the widget on a page of somebody else, in front or behind others. */
import { signal } from "@preact/signals";

export const isWidget = location.pathname.endsWith("/widget.html");

/** The host of the page that shows the widget, where the browser tells it. */
export function embedder(): string | null {
  const [outermost] = location.ancestorOrigins ?? [];
  return isWidget && outermost ? new URL(outermost).host : null;
}

/** Whether the person can see the page. */
export const isShown = signal(document.visibilityState === "visible");

document.addEventListener("visibilitychange", () => (isShown.value = document.visibilityState === "visible"));

/** Where the app runs: as a page of its own, or as the widget on a page of somebody else. */

export const isWidget = location.pathname.endsWith("/widget.html");

/** The host of the page that shows the widget, where the browser tells it. */
export function embedder(): string | null {
  const [outermost] = location.ancestorOrigins ?? [];
  return isWidget && outermost ? new URL(outermost).host : null;
}

/** The service worker that keeps the shell of the app for times without a line. */
const WORKER = "/app/sw.js";

interface TrustedTypes {
  createPolicy(
    name: string,
    rules: { createScriptURL: (url: string) => string },
  ): { createScriptURL: (url: string) => string };
}

export async function keepShell(): Promise<void> {
  if (!("serviceWorker" in navigator)) return;
  try {
    const types = (globalThis as { trustedTypes?: TrustedTypes }).trustedTypes;
    // The policy of the page knows this name alone, and it makes this one address.
    const made = types?.createPolicy("blindpipe-worker", { createScriptURL: () => WORKER }).createScriptURL(WORKER);
    navigator.serviceWorker.addEventListener("message", ({ data }: MessageEvent<{ go?: unknown }>) => {
      // A notification was pressed.
      if (typeof data.go === "string") location.hash = data.go;
    });
    await navigator.serviceWorker.register(made ?? WORKER, { scope: "/app" });
  } catch {
    // A private window has none. The app works without.
  }
}

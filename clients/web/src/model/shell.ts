/** The service worker, which keeps the shell of the app for times without a line and shows notifications. */
import { readNotificationWords } from "./storage.js";

const WORKER = "/app/sw.js";
/** It can read as well: for people who want words in notifications. */
const READING_WORKER = "/app/reading-sw.js";

interface Policy {
  createScriptURL(url: string): string;
}

interface TrustedTypes {
  createPolicy(name: string, rules: Policy): Policy;
}

let policy: Policy | undefined;

// The policy of the page knows this name alone, and it makes these two addresses.
function trusted(url: typeof WORKER | typeof READING_WORKER): string {
  const types = (globalThis as { trustedTypes?: TrustedTypes }).trustedTypes;
  const createScriptURL = (wanted: string): string => (wanted === READING_WORKER ? READING_WORKER : WORKER);
  policy ??= types?.createPolicy("blindpipe-worker", { createScriptURL });
  return policy?.createScriptURL(url) ?? url;
}

/** Registers the worker that the person wants. A subscription to pushes stays. */
export async function chooseWorker(): Promise<void> {
  const url = (await readNotificationWords()) ? READING_WORKER : WORKER;
  await navigator.serviceWorker.register(trusted(url), { scope: "/app" });
}

export async function keepShell(): Promise<void> {
  if (!("serviceWorker" in navigator)) return;
  try {
    navigator.serviceWorker.addEventListener("message", ({ data }: MessageEvent<{ go?: unknown }>) => {
      // A notification was pressed.
      if (typeof data.go === "string") location.hash = data.go;
    });
    await chooseWorker();
  } catch {
    // A private window has none. The app works without.
  }
}

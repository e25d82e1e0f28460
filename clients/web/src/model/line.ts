/** The line to the service: whether events come, and a wait for its return. */
import { computed, effect, signal } from "@preact/signals";

const isConnected = signal(false);
const PATIENCE_MS = 5_000;

/** Whether the browser has any network. */
export const hasNetwork = signal(navigator.onLine);
export const isOnline = computed(() => isConnected.value && hasNetwork.value);

addEventListener("online", () => (hasNetwork.value = true));
addEventListener("offline", () => (hasNetwork.value = false));

export function found(): void {
  isConnected.value = true;
}

export function lost(): void {
  isConnected.value = false;
}

/** Until something of the line has changed, or another try is due. */
export function waitForLine(): Promise<void> {
  return new Promise((resolve) => {
    const before = [isConnected.peek(), hasNetwork.peek()].join();
    const timer = setTimeout(() => end(), PATIENCE_MS);
    const stop = effect(() => {
      const now = [isConnected.value, hasNetwork.value].join();
      if (now !== before) queueMicrotask(() => end());
    });
    const end = (): void => {
      clearTimeout(timer);
      stop();
      resolve();
    };
  });
}

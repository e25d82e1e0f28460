/** Whether somebody is signed in: the one thing of the session that the page needs before the rest of it is here. */
import { signal } from "@preact/signals";
import type { Client } from "@blindpipe/client";

export type Phase =
  | { readonly is: "starting" }
  /** Nobody knows yet who is signed in, because the service cannot be reached. */
  | { readonly is: "away" }
  | { readonly is: "signed-out" }
  /** Signed in, on a device without keys. `hasBackup`: there is something to restore. */
  | { readonly is: "without-keys"; readonly client: Client; readonly hasBackup: boolean }
  | { readonly is: "ready"; readonly client: Client };

export const phase = signal<Phase>({ is: "starting" });

/** The signed-in client. Screens that are shown to signed-in people only ask for it. */
export function client(): Client {
  const now = phase.value;
  if (now.is !== "ready") throw new Error("nobody is signed in");
  return now.client;
}

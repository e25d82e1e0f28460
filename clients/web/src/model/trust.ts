/** The keys of others, as this browser knows them: those that wait for the person, and those that were compared. */
import { signal } from "@preact/signals";
import type { Client } from "@blindpipe/client";
import { client } from "./phase.js";

export type Principal = Parameters<Client["safetyNumber"]>[0];
type Pin = ReturnType<Client["trust"]["keysOf"]>[number];

/** Rises with each thing that is learned of keys. The trust itself is no signal. */
export const learnings = signal(0);

/** The keys that serve now. */
function present(principal: Principal): readonly Pin[] {
  void learnings.value;
  const isRetired = ({ retired, retiredAt }: Pin): boolean => retired || (retiredAt !== null && retiredAt <= Date.now());
  return client()
    .trust.keysOf(principal)
    .filter((pin) => !isRetired(pin));
}

/** The ids of keys that nothing is encrypted for until the person confirms them. */
export function waitingKeys(principal: Principal): readonly string[] {
  return present(principal)
    .filter(({ standing }) => standing === "waiting")
    .map(({ keyId }) => keyId);
}

/** People have compared the digits, and no other key serves. */
export function isCompared(principal: Principal): boolean {
  const keys = present(principal);
  return keys.length > 0 && keys.every(({ standing }) => standing === "verified");
}

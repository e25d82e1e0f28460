/** Passkeys, as the browser makes and uses them. */
import type { Client, components } from "@blindpipe/client";
import { isWidget } from "./place.js";

type Challenge = Pick<components["schemas"]["LoginChallenge"], "challenge_id" | "public_key" | "expires_at">;

/** The answer to a challenge, for the service. */
export interface PasskeyAnswer {
  readonly challengeId: string;
  readonly credential: unknown;
}

/** A challenge is replaced this long before its end. */
const RENEW_BEFORE_MS = 30_000;

/** Whether this browser has passkeys, in the form that is used here. A frame of another page gets none. */
export const hasPasskeys =
  !isWidget && "PublicKeyCredential" in globalThis && "parseRequestOptionsFromJSON" in PublicKeyCredential;

/** Whether the browser offers passkeys beside the field for the e-mail. */
export async function offersPasskeys(): Promise<boolean> {
  return hasPasskeys && ((await PublicKeyCredential.isConditionalMediationAvailable?.()) ?? false);
}

/** `late`: the challenge has ended before the person chose. Null if they choose none, or the signal aborted. */
export async function passkeyAnswer(
  { challenge_id: challengeId, public_key, expires_at }: Challenge,
  mediation: "conditional" | "optional",
  signal: AbortSignal,
): Promise<PasskeyAnswer | "late" | null> {
  const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(
    public_key as unknown as PublicKeyCredentialRequestOptionsJSON,
  );
  const end = AbortSignal.timeout(Math.max(0, Date.parse(expires_at) - Date.now() - RENEW_BEFORE_MS));
  try {
    const both = AbortSignal.any([signal, end]);
    const credential = await navigator.credentials.get({ publicKey, mediation, signal: both });
    return credential && { challengeId, credential: (credential as PublicKeyCredential).toJSON() };
  } catch (error) {
    if (end.aborted && !signal.aborted) return "late";
    if (wasNotChosen(error) || signal.aborted) return null;
    throw error;
  }
}

/** Makes a passkey and adds it to the account. False if the person changed their mind. */
export async function addPasskey(client: Client, name: string): Promise<boolean> {
  const { challenge_id, public_key } = await client.beginPasskey();
  const publicKey = PublicKeyCredential.parseCreationOptionsFromJSON(
    public_key as unknown as PublicKeyCredentialCreationOptionsJSON,
  );
  try {
    const made = (await navigator.credentials.create({ publicKey })) as PublicKeyCredential | null;
    if (!made) return false;
    await client.addPasskey(challenge_id, made.toJSON(), name);
    return true;
  } catch (error) {
    if (wasNotChosen(error)) return false;
    throw error;
  }
}

/** The browser tells a cancel and the lack of a passkey alike. */
function wasNotChosen(error: unknown): boolean {
  return error instanceof DOMException && (error.name === "NotAllowedError" || error.name === "AbortError");
}

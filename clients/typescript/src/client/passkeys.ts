/** Passkeys, as a browser makes and uses them. */
import { UsageError } from "../e2ee/errors.js";
import type { components } from "../generated/openapi.js";

type Schemas = components["schemas"];

/** The answer to a challenge, for the service. */
export interface PasskeyAnswer {
  readonly challengeId: string;
  readonly credential: unknown;
}

export interface PasskeyOptions {
  /**
   * The browser offers passkeys beside a field with `autocomplete="username webauthn"`, for as long as it
   * takes. Without it, a dialog asks at once.
   */
  readonly autofill?: boolean | undefined;
  /** Takes the question back. */
  readonly signal?: AbortSignal | undefined;
}

/** A challenge is replaced this long before its end. */
const RENEW_BEFORE_MS = 30_000;

/** Whether this is a browser with passkeys, in the form that is used here. */
export function supportsPasskeys(): boolean {
  return "PublicKeyCredential" in globalThis && "parseRequestOptionsFromJSON" in PublicKeyCredential;
}

/** Whether the browser offers passkeys beside a field. */
export async function supportsPasskeyAutofill(): Promise<boolean> {
  if (!supportsPasskeys()) return false;
  return (await PublicKeyCredential.isConditionalMediationAvailable?.()) ?? false;
}

/**
 * The answer of a passkey that the person chooses; null if they choose none, or the signal aborts. A
 * challenge that ends meanwhile is replaced.
 */
export async function answeredByPasskey(
  challenge: () => Promise<Schemas["LoginChallenge"]>,
  options: PasskeyOptions,
): Promise<PasskeyAnswer | null> {
  checkSupport();
  for (;;) {
    const answer = await asked(await challenge(), options);
    if (answer !== "late") return answer;
  }
}

async function asked(
  { challenge_id: challengeId, public_key, expires_at }: Schemas["LoginChallenge"],
  { autofill, signal: stopping }: PasskeyOptions,
): Promise<PasskeyAnswer | "late" | null> {
  const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(
    public_key as unknown as PublicKeyCredentialRequestOptionsJSON,
  );
  const end = AbortSignal.timeout(Math.max(0, Date.parse(expires_at) - Date.now() - RENEW_BEFORE_MS));
  const signal = stopping ? AbortSignal.any([stopping, end]) : end;
  const mediation = autofill ? "conditional" : "optional";
  try {
    const credential = await navigator.credentials.get({ publicKey, mediation, signal });
    return credential && { challengeId, credential: (credential as PublicKeyCredential).toJSON() };
  } catch (error) {
    if (end.aborted && !stopping?.aborted) return "late";
    if (wasNotChosen(error) || stopping?.aborted) return null;
    throw error;
  }
}

/** A new passkey that answers a challenge, as WebAuthn's JSON; null if the person changed their mind. */
export async function createdPasskey({
  public_key,
}: Schemas["EnrolmentChallenge"]): Promise<unknown> {
  const publicKey = PublicKeyCredential.parseCreationOptionsFromJSON(
    public_key as unknown as PublicKeyCredentialCreationOptionsJSON,
  );
  try {
    const made = (await navigator.credentials.create({ publicKey })) as PublicKeyCredential | null;
    return made?.toJSON() ?? null;
  } catch (error) {
    if (wasNotChosen(error)) return null;
    throw error;
  }
}

export function checkSupport(): void {
  if (!supportsPasskeys()) throw new UsageError("no passkeys here: this needs a current browser");
}

/** The browser tells a cancel and the lack of a passkey alike. */
function wasNotChosen(error: unknown): boolean {
  const names = ["NotAllowedError", "AbortError"];
  return error instanceof DOMException && names.includes(error.name);
}

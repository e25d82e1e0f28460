/** Why something does not open. The reasons are the same in every language. */
export type DecryptReason =
  | "malformed"
  | "unknown_version"
  | "unknown_kind"
  | "no_epoch_key"
  | "wrong_key"
  | "bad_ciphertext"
  | "bad_padding"
  | "unknown_sender_key"
  | "bad_signature"
  | "retired_key"
  | "stale"
  | "clear"
  | "not_json";

/** Nothing that fails to open is shown as said by anybody. */
export class DecryptError extends Error {
  override readonly name = "DecryptError";
  constructor(readonly reason: DecryptReason) {
    super(`cannot be opened: ${reason}`);
  }
}

/** There is no secret to seal with, or none that may seal. */
export class KeyUnavailable extends Error {
  override readonly name = "KeyUnavailable";
  constructor(message = "no key of this conversation may seal") {
    super(message);
  }
}

/** A caller's mistake: a value that is never sealed, or a key that is none. */
export class UsageError extends Error {
  override readonly name = "UsageError";
}

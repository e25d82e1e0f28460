/** A fresh secret for a conversation: who gets it, and what the server's refusals mean. */
import { base64, hex, idBytes } from "../e2ee/bytes.js";
import { agentLaneSecret, newSecret, secretId } from "../e2ee/epoch.js";
import { type KeyPair, type Principal, keyId, principalName } from "../e2ee/keys.js";
import type { DirectoryKey, Pins } from "../e2ee/trust.js";
import { NOT_GIVEN, sealWrap } from "../e2ee/wrap.js";
import type { Recipient } from "../core/directory.js";
import type { Entry, Session } from "../core/session.js";
import { BlindpipeError } from "../errors.js";
import { RateLimited, RecipientsMismatch, VersionMismatch } from "../generated/errors.js";

const MAX_AGE_MS = 7 * 24 * 3_600_000;
const MAX_TRIES = 3;

/** Somebody who got nothing, so that the person can be told. */
export interface NotGiven {
  readonly principal: Principal;
  readonly deviceId: string | null;
}

/** Whether a conversation needs a fresh secret before anything is sent. */
export function needsRotation(entry: Entry): boolean {
  if ((entry.serverEpoch ?? 0) === 0 || entry.rotationRequired || entry.hasChanged) return true;
  if (Date.now() - entry.keys.newestMadeAt > MAX_AGE_MS) return true;
  try {
    entry.keys.sealingSecret(entry.serverEpoch);
    return false;
  } catch {
    return true;
  }
}

interface WrappedKey {
  readonly principal_id: string;
  readonly device_id?: string;
  readonly wrapped_key: string;
}

export class Rotator {
  constructor(
    private readonly session: Session,
    private readonly self: Principal,
    private readonly keys: KeyPair,
    private readonly pins: Pins,
    private readonly onNotGiven: (conversationId: string, who: NotGiven) => void,
  ) {}

  /** Makes the next epoch. Of two that rotate at once, both go on with the one that won. */
  async rotate(conversationId: string): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      const entry = await this.session.load(conversationId);
      const base = entry.serverEpoch ?? 0;
      try {
        return await this.#rotateFrom(conversationId, entry, base);
      } catch (error) {
        if (!(error instanceof BlindpipeError)) throw error;
        if (await this.#isSettled(conversationId, entry, error)) return;
        if (attempt >= MAX_TRIES) throw error;
      }
    }
  }

  /** Whether there is a secret to seal with after all. */
  async #isSettled(conversationId: string, entry: Entry, error: BlindpipeError): Promise<boolean> {
    if (error instanceof VersionMismatch) {
      await this.session.readWraps(conversationId, entry);
      return canSeal(entry);
    }
    if (error instanceof RecipientsMismatch) {
      entry.isStale = true;
      return false;
    }
    if (error instanceof RateLimited && canSeal(entry)) return true;
    throw error;
  }

  async #rotateFrom(conversationId: string, entry: Entry, base: number): Promise<void> {
    const wraps = await this.#wraps(conversationId, entry, base + 1);
    const made = await this.session.options.http.data<{ epoch: number }>({
      method: "POST",
      path: `/keys/groups/${conversationId}/rotate`,
      body: { base_epoch: base, wrapped_keys: wraps },
    });
    if (made.epoch !== base + 1) throw new Error("the server numbered the epoch otherwise");
    entry.serverEpoch = made.epoch;
    entry.rotationRequired = false;
    entry.hasChanged = false;
    const own = wraps.filter((wrap) => isSame(wrap.principal_id, this.self.id));
    await this.session.takeWraps(conversationId, entry, made.epoch, own);
  }

  async #wraps(conversationId: string, entry: Entry, epoch: number): Promise<WrappedKey[]> {
    const conversation = idBytes(conversationId);
    const secret = newSecret();
    const sid = await secretId(secret, conversation, epoch);
    const madeAt = Math.max(Date.now(), entry.keys.marks.time + 1);
    const wraps: WrappedKey[] = [];
    for (const recipient of entry.recipients) {
      const isLane = recipient.visibility === "addressed";
      const id = idBytes(recipient.principal.id);
      const given = isLane ? await agentLaneSecret(secret, conversation, epoch, id) : secret;
      for (const key of recipient.keys) {
        const isGiven = await this.#mayHave(entry, recipient, key);
        if (!isGiven) {
          const deviceId = key.deviceId ?? null;
          this.onNotGiven(conversationId, { principal: recipient.principal, deviceId });
        }
        const wrapped_key = isGiven
          ? await sealWrap({
              kind: isLane ? 2 : 1,
              secret: given,
              sid,
              previousSid: entry.keys.newestSid ?? undefined,
              conversation,
              epoch,
              recipient: recipient.principal,
              recipientKeys: key,
              rotator: this.self,
              rotatorKeys: this.keys,
              madeAt,
            })
          : NOT_GIVEN;
        const device = key.deviceId ? { device_id: key.deviceId } : {};
        wraps.push({ principal_id: recipient.principal.id, ...device, wrapped_key });
      }
    }
    return wraps;
  }

  /** Nothing for a key that waits, is unusable, or is of nobody whom the person is shown. */
  async #mayHave(entry: Entry, recipient: Recipient, key: DirectoryKey): Promise<boolean> {
    if (!entry.members.has(principalName(recipient.principal))) return false;
    return this.pins.isAccepted(recipient.principal, hex(await keyId(key)));
  }
}

function canSeal(entry: Entry): boolean {
  try {
    entry.keys.sealingSecret(entry.serverEpoch);
    return true;
  } catch {
    return false;
  }
}

function isSame(one: string, other: string): boolean {
  return base64(idBytes(one)) === base64(idBytes(other));
}

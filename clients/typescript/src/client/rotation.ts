/** A fresh secret for a conversation: who gets it, and what the server's refusals mean. */
import { base64, idBytes } from "../e2ee/bytes.js";
import { agentLaneSecret, newSecret, secretId } from "../e2ee/epoch.js";
import type { KeyPair, Principal } from "../e2ee/keys.js";
import type { DirectoryKey, NoticeKind, Trust } from "../e2ee/trust.js";
import { NOT_GIVEN, sealWrap } from "../e2ee/wrap.js";
import type { Recipient } from "../core/directory.js";
import type { Entry, Session } from "../core/session.js";
import { KeyUnavailable } from "../e2ee/errors.js";
import { BlindpipeError } from "../errors.js";
import { RateLimited, RecipientsMismatch, VersionMismatch } from "../generated/errors.js";

const MAX_TRIES = 3;
/** WebCrypto has a few threads; a group of 500 has more than a thousand devices. */
const WRAPS_AT_ONCE = 32;

/** Somebody who got nothing, so that the person can be told. */
export interface NotGiven {
  readonly principal: Principal;
  readonly deviceId: string | null;
  readonly because: NoticeKind;
}

/** Why a fresh secret was due. `none`: there is no other that may seal, or somebody wished it. */
export type NotRotated = "change" | "age" | "none";

/** Whether a conversation needs a fresh secret before anything is sent. */
export function needsRotation(entry: Entry, self: Principal, answering: number | null): boolean {
  return !("with" in entry.room.sealing(self, answering, Date.now()));
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
    private readonly pins: Trust,
    private readonly onNotGiven: (conversationId: string, who: NotGiven) => void,
    private readonly onNotRotated: (conversationId: string, because: NotRotated) => void,
  ) {}

  /**
   * Makes the next epoch. Of two that rotate at once, both go on with the one that won. Throws
   * `KeyUnavailable` where the server refuses it and the secret of before may not go on.
   */
  async rotate(conversationId: string): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      const entry = await this.session.load(conversationId);
      const base = entry.room.server.epoch;
      try {
        return await this.#rotateFrom(conversationId, entry, base);
      } catch (error) {
        if (!(error instanceof BlindpipeError)) throw error;
        if (await this.#isSettled(conversationId, entry, error)) return;
        if (attempt >= MAX_TRIES) throw this.#notRotated(conversationId, entry);
      }
    }
  }

  /** Whether there is a secret to seal with after all. */
  async #isSettled(conversationId: string, entry: Entry, error: BlindpipeError): Promise<boolean> {
    const { grace } = this.session;
    const now = Date.now();
    if (error instanceof VersionMismatch) {
      await this.session.readWraps(conversationId, entry);
      // A refusal alone makes no secret fresh.
      return !needsRotation(entry, this.self, null);
    }
    if (error instanceof RecipientsMismatch) {
      entry.isStale = true;
      return false;
    }
    if (error instanceof RateLimited) {
      grace.refused(conversationId, now);
      if (entry.room.due(now) === "age" && grace.holds(conversationId, now)) return true;
      throw this.#notRotated(conversationId, entry);
    }
    throw error;
  }

  #notRotated(conversationId: string, { room }: Entry): KeyUnavailable {
    const because = room.due(Date.now()) ?? "none";
    this.onNotRotated(conversationId, because);
    return new KeyUnavailable("the server has refused a fresh secret, which is due");
  }

  async #rotateFrom(conversationId: string, entry: Entry, base: number): Promise<void> {
    const wraps = await this.#wraps(conversationId, entry, base + 1);
    const made = await this.session.options.http.data<{ epoch: number }>({
      method: "POST",
      path: `/keys/groups/${conversationId}/rotate`,
      body: { base_epoch: base, wrapped_keys: wraps },
    });
    if (made.epoch !== base + 1) throw new Error("the server numbered the epoch otherwise");
    const { deviceId } = this.session.options;
    const own = wraps.find(
      (wrap) => isSame(wrap.principal_id, this.self.id) && wrap.device_id === deviceId,
    );
    if (own) await this.session.rotated(conversationId, entry, made.epoch, own.wrapped_key);
  }

  async #wraps(conversationId: string, entry: Entry, epoch: number): Promise<WrappedKey[]> {
    const conversation = idBytes(conversationId);
    const secret = newSecret();
    const sid = await secretId(secret, conversation, epoch);
    const madeAt = Math.max(Date.now(), entry.room.marks.time + 1);
    const wraps: WrappedKey[] = [];
    const wrap = async (recipient: Recipient, key: DirectoryKey): Promise<string> => {
      const given = await entry.room.give(this.pins, recipient.principal, key);
      if (typeof given !== "string") {
        const deviceId = key.deviceId ?? null;
        const { because } = given;
        this.onNotGiven(conversationId, { principal: recipient.principal, deviceId, because });
        return NOT_GIVEN;
      }
      const id = idBytes(recipient.principal.id);
      const isLane = given === "lane";
      return sealWrap({
        kind: isLane ? 2 : 1,
        secret: isLane ? await agentLaneSecret(secret, conversation, epoch, id) : secret,
        sid,
        previousSid: entry.room.newest?.sid,
        conversation,
        epoch,
        recipient: recipient.principal,
        recipientKeys: key,
        rotator: this.self,
        rotatorKeys: this.keys,
        madeAt,
      });
    };
    const wanted = entry.recipients.flatMap((recipient) =>
      recipient.keys.map((key) => ({ recipient, key })),
    );
    for (let at = 0; at < wanted.length; at += WRAPS_AT_ONCE) {
      const some = wanted.slice(at, at + WRAPS_AT_ONCE).map(async ({ recipient, key }) => {
        const device = key.deviceId ? { device_id: key.deviceId } : {};
        const wrapped_key = await wrap(recipient, key);
        return { principal_id: recipient.principal.id, ...device, wrapped_key };
      });
      wraps.push(...(await Promise.all(some)));
    }
    return wraps;
  }
}

function isSame(one: string, other: string): boolean {
  return base64(idBytes(one)) === base64(idBytes(other));
}

/** The secret of an epoch, and the secrets of its lanes. */
import {
  type Bytes,
  EMPTY,
  type NativeKey,
  concat,
  equal,
  hex,
  label,
  random,
  u32,
  u8,
} from "./bytes.js";
import { DecryptError } from "./errors.js";
import { hkdf, hkdfKey } from "./primitives.js";

/** Everyone's lane, and that of one `addressed` agent. */
export const LANE_EVERYONE = 0;
export const LANE_AGENT = 2;

/** The secret in a wrap: 1 is the epoch's, 2 is that of an agent's lane. */
export type SecretKind = 1 | 2;

const EVERYONE = u8(LANE_EVERYONE);

function agentLane(agentId: Uint8Array): Bytes {
  return concat(u8(LANE_AGENT), agentId);
}

/** `sid` names a secret and commits to it. */
export function secretId(
  secret: Uint8Array | NativeKey,
  conversation: Uint8Array,
  epoch: number,
): Promise<Bytes> {
  return hkdf(secret, EMPTY, concat(label("epoch-id"), conversation, u32(epoch)), 16);
}

function laneBytes(
  secret: Uint8Array | NativeKey,
  conversation: Uint8Array,
  epoch: number,
  lane: Uint8Array,
): Promise<Bytes> {
  return hkdf(secret, EMPTY, concat(label("lane"), conversation, u32(epoch), lane), 32);
}

/** The secret of the lane of one `addressed` agent, as its wrap carries it. */
export function agentLaneSecret(
  secret: Uint8Array,
  conversation: Uint8Array,
  epoch: number,
  agentId: Uint8Array,
): Promise<Bytes> {
  return laneBytes(secret, conversation, epoch, agentLane(agentId));
}

/** `agentId` null asks for everyone's lane. */
export function laneSecret(
  secret: Uint8Array,
  conversation: Uint8Array,
  epoch: number,
  agentId: Uint8Array | null,
): Promise<Bytes> {
  return laneBytes(secret, conversation, epoch, agentId ? agentLane(agentId) : EVERYONE);
}

export function newSecret(): Bytes {
  return random(32);
}

/** A secret that is held: it opens and seals, and does not show its bytes. */
export class EpochKey {
  readonly #key: NativeKey;
  readonly #lanes = new Map<string, Promise<NativeKey>>();

  private constructor(
    readonly kind: SecretKind,
    readonly conversation: Bytes,
    readonly epoch: number,
    readonly sid: Bytes,
    key: NativeKey,
    /** The agent whose lane this is, for kind 2. */
    readonly agentId: Bytes | null,
  ) {
    this.#key = key;
  }

  /** The secret of everyone's lane and of every agent's. */
  static async ofEpoch(secret: Uint8Array, conversation: Bytes, epoch: number): Promise<EpochKey> {
    const key = await hkdfKey(secret);
    const sid = await secretId(key, conversation, epoch);
    return new EpochKey(1, conversation, epoch, sid, key, null);
  }

  /** The secret of one agent's lane. Its `sid` proves nothing, so the wrap's signature must. */
  static async ofLane(
    secret: Uint8Array,
    conversation: Bytes,
    epoch: number,
    sid: Bytes,
    agentId: Bytes,
  ): Promise<EpochKey> {
    return new EpochKey(2, conversation, epoch, sid, await hkdfKey(secret), agentId);
  }

  get opensEverything(): boolean {
    return this.kind === 1;
  }

  /** Everyone's lane (`null`) or an agent's. Throws `no_epoch_key` beyond this secret's reach. */
  lane(agentId: Bytes | null): Promise<NativeKey> {
    if (this.kind === 2) {
      if (!agentId || !equal(agentId, this.agentId!)) throw new DecryptError("no_epoch_key");
      return Promise.resolve(this.#key);
    }
    const name = agentId ? hex(agentId) : "";
    let lane = this.#lanes.get(name);
    if (!lane) {
      const info = agentId ? agentLane(agentId) : EVERYONE;
      lane = laneBytes(this.#key, this.conversation, this.epoch, info).then(hkdfKey);
      this.#lanes.set(name, lane);
    }
    return lane;
  }
  /** The key of search tokens; null beyond this secret's reach. */
  async search(): Promise<NativeKey | null> {
    if (this.kind === 2) return null;
    const info = concat(label("search"), this.conversation, u32(this.epoch));
    return hkdfKey(await hkdf(this.#key, EMPTY, info, 32));
  }
}

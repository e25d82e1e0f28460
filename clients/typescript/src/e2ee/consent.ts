/** Consent: what a device may execute, by its own records. */
import { Kind, type RequestPlace } from "./context.js";
import { DecryptError, UsageError } from "./errors.js";
import { type Incoming, MAX_MESSAGE_AGE_MS, type Room, type Shown } from "./room.js";
import type { Trust } from "./trust.js";
import { type Principal, principalName } from "./keys.js";
import { type Bytes, equal, hex, idBytes } from "./bytes.js";

const DAY_MS = 24 * 3_600_000;
/** How long a device may be silent about a tool, at most. */
export const MAX_REMEMBERED_DAYS = 30;

export type Sensitivity = "low" | "medium" | "high";

const RANK: Readonly<Record<Sensitivity, number>> = { low: 0, medium: 1, high: 2 };

/** A tool of the device's own table. */
export interface Tool {
  readonly scope: string;
  readonly sensitivity: Sensitivity;
}

/**
 * `execute` unasked; `ask` the person; `unable`: not for this person, or no tool of this device;
 * `repeated`: it began before, and is never executed twice.
 */
export type Decision = "execute" | "ask" | "unable" | "repeated";

/** A person's word that a tool may run unasked for a time. */
export interface StoredRemembered {
  /** In hexadecimal. */
  readonly conversation: string;
  /** `P`, in hexadecimal. */
  readonly agent: string;
  readonly tool: string;
  readonly scope: string;
  /** Unix milliseconds. */
  readonly until: number;
}

/**
 * The records of a device by name, all or those that have changed. A request that began is kept for
 * 31 days.
 */
export interface StoredConsents {
  /** Unix milliseconds; null where an earlier version kept no time. */
  readonly begun: Readonly<Record<string, number | null>>;
  /** Null takes an earlier record away. */
  readonly remembered: Readonly<Record<string, StoredRemembered | null>>;
}

/** Earlier versions kept `approved` too, which silenced all tools of a scope; nothing reads it. */
interface EarlierConsents {
  readonly begun: readonly string[];
  /** In the order of `begun`. */
  readonly begunAt?: readonly number[];
  readonly remembered?: readonly StoredRemembered[];
}

/** The records in the form of this version. */
function present(stored: StoredConsents | EarlierConsents): StoredConsents {
  const { begun, remembered = [] } = stored;
  if (!isNames(begun)) return stored as StoredConsents;
  const { begunAt = [] } = stored as EarlierConsents;
  // Some versions added names without times, so the times fit no longer.
  const isTimed = begun.length === begunAt.length;
  return {
    begun: Object.fromEntries(begun.map((name, i) => [name, isTimed ? begunAt[i]! : null])),
    remembered: Object.fromEntries(
      (remembered as readonly StoredRemembered[]).map((each) => [rememberedName(each), each]),
    ),
  };
}

function isNames(begun: object): begun is readonly string[] {
  return Array.isArray(begun);
}

export class Consents {
  /** Unix milliseconds; null until the next `begin` where an earlier version kept no time. */
  readonly #begun: Map<string, number | null>;
  /** By conversation, agent and tool. */
  readonly #remembered: Map<string, StoredRemembered>;
  #changedBegun = new Set<string>();
  #changedRemembered = new Set<string>();

  constructor(
    private readonly tools: Readonly<Record<string, Tool>>,
    stored: StoredConsents | EarlierConsents = { begun: {}, remembered: {} },
  ) {
    const { begun, remembered } = present(stored);
    this.#begun = new Map(Object.entries(begun));
    const kept = Object.entries(remembered).filter(([, each]) => each !== null);
    this.#remembered = new Map(kept as [string, StoredRemembered][]);
  }

  store(): StoredConsents {
    return {
      begun: Object.fromEntries(this.#begun),
      remembered: Object.fromEntries(this.#remembered),
    };
  }

  /** The records that have changed since the last question; null if there are none. */
  takeChanged(): StoredConsents | null {
    const [begun, remembered] = [this.#changedBegun, this.#changedRemembered];
    if (begun.size + remembered.size === 0) return null;
    [this.#changedBegun, this.#changedRemembered] = [new Set(), new Set()];
    const begunNow = [...begun].filter((name) => this.#begun.has(name));
    return {
      begun: Object.fromEntries(begunNow.map((name) => [name, this.#begun.get(name)!])),
      remembered: Object.fromEntries(
        [...remembered].map((name) => [name, this.#remembered.get(name) ?? null]),
      ),
    };
  }

  /** A store did not keep what `takeChanged` gave. */
  notKept({ begun, remembered }: StoredConsents): void {
    for (const name of Object.keys(begun)) this.#changedBegun.add(name);
    for (const name of Object.keys(remembered)) this.#changedRemembered.add(name);
  }

  /** A tool of the device's own table. */
  tool(name: string): Tool | undefined {
    return Object.hasOwn(this.tools, name) ? this.tools[name] : undefined;
  }

  /** Decides about a request that opened. `manifest` may raise the sensitivity, never lower it. */
  decide(
    me: Principal,
    conversation: Uint8Array,
    agent: Principal,
    request: RequestPlace,
    manifest: Sensitivity | null,
    now: number,
  ): Decision {
    if (this.#begun.has(begunName(agent, request.requestId))) return "repeated";
    const tool = this.tool(request.tool);
    const isMine = me.type === "user" && equal(idBytes(me.id), idBytes(request.userId));
    if (!tool || tool.scope !== request.scope || !isMine) return "unable";
    const sensitivity = rankOf(tool, manifest);
    if (sensitivity >= RANK.high) return "ask";
    return this.#isRemembered(conversation, agent, request, now) ? "execute" : "ask";
  }

  #isRemembered(
    conversation: Uint8Array,
    agent: Principal,
    { tool, scope }: RequestPlace,
    now: number,
  ): boolean {
    const remembered = this.#remembered.get(
      rememberedName({ conversation: hex(conversation), agent: principalName(agent), tool }),
    );
    if (remembered?.scope !== scope) return false;
    // A clock that was set back makes no silence longer.
    const left = remembered.until - now;
    return left > 0 && left <= MAX_REMEMBERED_DAYS * DAY_MS;
  }

  /**
   * From now on this tool of the agent runs unasked in this conversation, for so many days. Throws
   * `UsageError` for more than 30 days, for a `high` tool, and for none of this device.
   */
  remember(
    conversation: Uint8Array,
    agent: Principal,
    request: RequestPlace,
    manifest: Sensitivity | null,
    days: number,
    now: number,
  ): void {
    if (!(days >= 1 && days <= MAX_REMEMBERED_DAYS)) {
      throw new UsageError("an approval is remembered for 1 to 30 days");
    }
    const tool = this.tool(request.tool);
    if (!tool || tool.scope !== request.scope) {
      throw new UsageError("this device has no such tool under this scope");
    }
    if (rankOf(tool, manifest) >= RANK.high) throw new UsageError("a high tool always asks");
    for (const [name, { until }] of this.#remembered) {
      if (until <= now) this.#forget(name);
    }
    const remembered = {
      conversation: hex(conversation),
      agent: principalName(agent),
      tool: request.tool,
      scope: request.scope,
      until: now + days * DAY_MS,
    };
    const name = rememberedName(remembered);
    this.#remembered.set(name, remembered);
    this.#changedRemembered.add(name);
  }

  #forget(name: string): boolean {
    this.#changedRemembered.add(name);
    return this.#remembered.delete(name);
  }

  /**
   * Forgets what was remembered of an agent: of one scope or of all, in one
   * conversation or in all. False if there was nothing.
   */
  withdraw(conversation: Uint8Array | null, agent: Principal, scope: string | null): boolean {
    const who = principalName(agent);
    const where = conversation && hex(conversation);
    let isChanged = false;
    for (const [name, each] of this.#remembered) {
      if (each.agent !== who || (scope !== null && each.scope !== scope)) continue;
      if (where !== null && each.conversation !== where) continue;
      isChanged = this.#forget(name);
    }
    return isChanged;
  }

  /**
   * To be stored durably *before* the device executes. False if it began before. `now` is Unix
   * milliseconds. Forgets what began more than 31 days before.
   */
  begin(agent: Principal, requestId: string, now: number): boolean {
    const name = begunName(agent, requestId);
    if (this.#begun.has(name)) return false;
    // The agent chooses the id, so the time in it says nothing about when the request began.
    for (const [of, at] of this.#begun) {
      if (at === null) {
        this.#begun.set(of, now);
        this.#changedBegun.add(of);
      } else if (at < now - MAX_MESSAGE_AGE_MS) this.#begun.delete(of);
    }
    this.#begun.set(name, now);
    this.#changedBegun.add(name);
    return true;
  }

  /** A request whose beginning a store did not keep has not begun. */
  notBegun(agent: Principal, requestId: string): void {
    const name = begunName(agent, requestId);
    this.#begun.delete(name);
    this.#changedBegun.delete(name);
  }
}

/** A manifest may raise the sensitivity, never lower it. */
function rankOf(tool: Tool, manifest: Sensitivity | null): number {
  // A word of the server's own is the highest one.
  const named = manifest ? (RANK[manifest] ?? RANK.high) : RANK.low;
  return Math.max(RANK[tool.sensitivity], named);
}

function rememberedName(
  { conversation, agent, tool }: Pick<StoredRemembered, "conversation" | "agent" | "tool">,
): string {
  return `${conversation}:${agent}:${tool}`;
}

function begunName(agent: Principal, requestId: string): string {
  return `${principalName(agent)}:${requestId}`;
}

/** The request of an agent: it believes consent to exactly this. */
export interface Asked {
  /** The user who was asked. */
  readonly user: string;
  readonly digest: Bytes;
}

/**
 * Opens a response as an answer to what was asked: only an envelope by an accepted key of the user
 * asked proves consent. The place's own digest is ignored. Throws `DecryptError`.
 */
export function openResponse(
  room: Room,
  pins: Trust,
  incoming: Incoming,
  asked: Asked,
  now: number,
): Promise<Shown> {
  const { sender, place } = incoming;
  const isAsked = sender.type === "user" && equal(idBytes(sender.id), idBytes(asked.user));
  if (!isAsked) throw new DecryptError("unknown_sender_key");
  const own = place.kind === Kind.response ? { ...place, digest: asked.digest } : place;
  return room.open(pins, { ...incoming, place: own }, now);
}

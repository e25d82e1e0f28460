/** Consent: what a device may execute, by its own records. */
import { Kind, type RequestPlace } from "./context.js";
import { DecryptError } from "./errors.js";
import type { Incoming, Room, Shown } from "./room.js";
import type { Trust } from "./trust.js";
import { type Principal, principalName } from "./keys.js";
import { type Bytes, equal, hex, idBytes } from "./bytes.js";

/** How long an approval of a medium tool lasts after its last use. */
const MEDIUM_WINDOW_MS = 24 * 3_600_000;

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

/** The records of a device, kept for ever. */
export interface StoredConsents {
  readonly begun: readonly string[];
  readonly approved: Readonly<Record<string, number>>;
}

export class Consents {
  readonly #begun: Set<string>;
  /** When an agent was last approved, or used it, by conversation and scope. */
  readonly #approved: Map<string, number>;

  constructor(
    private readonly tools: Readonly<Record<string, Tool>>,
    stored: StoredConsents = { begun: [], approved: {} },
  ) {
    this.#begun = new Set(stored.begun);
    this.#approved = new Map(Object.entries(stored.approved));
  }

  store(): StoredConsents {
    return { begun: [...this.#begun], approved: Object.fromEntries(this.#approved) };
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
    const tool = Object.hasOwn(this.tools, request.tool) ? this.tools[request.tool] : undefined;
    const isMine = me.type === "user" && equal(idBytes(me.id), idBytes(request.userId));
    if (!tool || tool.scope !== request.scope || !isMine) return "unable";
    const name = approvalName(conversation, agent, request.scope);
    const last = this.#approved.get(name);
    if (last === undefined) return "ask";
    const sensitivity = Math.max(RANK[tool.sensitivity], manifest ? RANK[manifest] : 0);
    const isSilent = sensitivity === 0 || (sensitivity === 1 && now - last < MEDIUM_WINDOW_MS);
    if (!isSilent) return "ask";
    this.#approved.set(name, Math.max(now, last));
    return "execute";
  }

  /** The person approved an agent here, by a prompt or a grant. */
  approve(conversation: Uint8Array, agent: Principal, scope: string, now: number): void {
    this.#approved.set(approvalName(conversation, agent, scope), now);
  }

  withdraw(conversation: Uint8Array, agent: Principal, scope: string): void {
    this.#approved.delete(approvalName(conversation, agent, scope));
  }

  /** To be stored durably *before* the device executes. False if it began before. */
  begin(agent: Principal, requestId: string): boolean {
    const name = begunName(agent, requestId);
    if (this.#begun.has(name)) return false;
    this.#begun.add(name);
    return true;
  }
}

function begunName(agent: Principal, requestId: string): string {
  return `${principalName(agent)}:${requestId}`;
}

function approvalName(conversation: Uint8Array, agent: Principal, scope: string): string {
  return `${hex(conversation)}:${principalName(agent)}:${scope}`;
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

/** Keeps calls of one budget in order while it is used up. */
import { Closed } from "../errors.js";
import type { HookCaller } from "../hooks.js";
import { onAbort } from "./wait.js";

/** A refusal by the limiter: the call waits and is made again. */
export class Limited {
  constructor(
    readonly error: Error,
    readonly waitMs: number,
    readonly scope: string,
  ) {}
}

interface Waiting {
  readonly ticket: number;
  readonly go: () => void;
}

/** A window that is longer may be shared with others; there the refusal itself says how long. */
const MAX_PRUDENT_WAIT_S = 1;

/** Calls of one route, which are charged to the same budgets. */
class Lane {
  /** The time before which nothing is sent. */
  notBefore = 0;
  #nextTicket = 0;
  /** In the order in which the calls were made. */
  readonly #waiting: Waiting[] = [];
  /** Calls that are under way. A later one waits for what becomes of them. */
  readonly #underWay = new Set<number>();
  #timer: ReturnType<typeof setTimeout> | null = null;

  takeTicket(): number {
    return this.#nextTicket++;
  }

  /** True if the call may go at once, beside others. */
  enter(ticket: number): boolean {
    if (this.#waiting.length > 0 || this.notBefore > Date.now()) return false;
    this.#underWay.add(ticket);
    return true;
  }

  /** Resolves when it is this ticket's turn. Its call must end with `done`. */
  turn(ticket: number, signal: AbortSignal | null): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(new Closed());
      const stop = (): void => {
        this.#waiting.splice(this.#waiting.indexOf(waiting), 1);
        reject(new Closed());
      };
      const go = (): void => {
        stay();
        resolve();
      };
      const waiting = { ticket, go };
      const stay = onAbort(signal, stop);
      const later = this.#waiting.findIndex((each) => each.ticket > ticket);
      this.#waiting.splice(later < 0 ? this.#waiting.length : later, 0, waiting);
      this.#underWay.delete(ticket);
      this.#pump();
    });
  }

  done(ticket: number): void {
    this.#underWay.delete(ticket);
    this.#pump();
  }

  #pump(): void {
    if (this.#underWay.size > 0 || this.#timer || this.#waiting.length === 0) return;
    const wait = this.notBefore - Date.now();
    if (wait > 0) {
      this.#timer = setTimeout(() => {
        this.#timer = null;
        this.#pump();
      }, wait);
      return;
    }
    const { ticket, go } = this.#waiting.shift()!;
    this.#underWay.add(ticket);
    go();
  }
}

export class Pacer {
  readonly #lanes = new Map<string, Lane>();

  constructor(private readonly hooks: HookCaller) {}

  /**
   * Makes a call in its lane. While the lane is held up, calls go one by one in the order in which
   * they were made. Throws the refusal of a call that would wait beyond `deadline`.
   */
  async run<T>(
    name: string,
    deadline: number,
    signal: AbortSignal | null,
    call: () => Promise<T | Limited>,
  ): Promise<T> {
    const lane = this.#lane(name);
    const ticket = lane.takeTicket();
    for (let isFirst = true; ; isFirst = false) {
      if (!(isFirst && lane.enter(ticket))) await lane.turn(ticket, signal);
      let waits = false;
      try {
        const outcome = await call();
        if (!(outcome instanceof Limited)) return outcome;
        if (Date.now() + outcome.waitMs > deadline) throw outcome.error;
        this.#hold(lane, outcome.waitMs, outcome.scope);
        waits = true;
      } finally {
        if (!waits) lane.done(ticket);
      }
    }
  }

  #hold(lane: Lane, ms: number, scope: string): void {
    lane.notBefore = Math.max(lane.notBefore, Date.now() + ms);
    this.hooks.call("rate_limited", { scope, wait_ms: Math.round(ms) });
  }

  /** Slows the lane down before the server refuses: the budget's last call was just used. */
  observe(name: string, header: string | null): void {
    for (const part of header?.split(",") ?? []) {
      const match = /"([^"]*)";r=(\d+);t=(\d+)/.exec(part);
      if (match && match[2] === "0" && Number(match[3]) <= MAX_PRUDENT_WAIT_S) {
        this.#hold(this.#lane(name), Number(match[3]) * 1000, match[1]!);
      }
    }
  }

  #lane(name: string): Lane {
    let lane = this.#lanes.get(name);
    if (!lane) this.#lanes.set(name, (lane = new Lane()));
    return lane;
  }
}

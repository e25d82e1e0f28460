/** Keeps calls of one budget in order while it is used up. */
import { type HookCaller } from "../hooks.js";
import { sleep } from "./wait.js";

interface Lane {
  /** The time before which nothing is sent. */
  notBefore: number;
  /** Calls that wait, each behind the one before. */
  tail: Promise<void>;
  waiting: number;
}

/** A lane is a route: calls of one route are charged to the same budgets. */
export class Pacer {
  readonly #lanes = new Map<string, Lane>();

  constructor(private readonly hooks: HookCaller) {}

  /**
   * Runs a call in its lane. While the lane is held up, calls go one by one in their order; a call
   * that is refused waits at the head. `call` answers what it learned about the budget.
   */
  async run<T>(name: string, signal: AbortSignal | null, call: () => Promise<T>): Promise<T> {
    const lane = this.#lane(name);
    if (lane.waiting === 0 && lane.notBefore <= Date.now()) return call();
    lane.waiting += 1;
    const turn = lane.tail;
    const result = turn.then(async () => {
      await this.#open(lane, signal);
      return call();
    });
    lane.tail = result.then(
      () => {},
      () => {},
    );
    try {
      return await result;
    } finally {
      lane.waiting -= 1;
    }
  }

  async #open(lane: Lane, signal: AbortSignal | null): Promise<void> {
    for (let wait = lane.notBefore - Date.now(); wait > 0; wait = lane.notBefore - Date.now()) {
      await sleep(wait, signal);
    }
  }

  /** Holds a lane up for a while. */
  hold(name: string, ms: number, scope: string): void {
    const lane = this.#lane(name);
    lane.notBefore = Math.max(lane.notBefore, Date.now() + ms);
    this.hooks.call("rate_limited", { scope, wait_ms: Math.round(ms) });
  }

  /** Slows the lane down before the server refuses: the budget's last call was just used. */
  observe(name: string, header: string | null): void {
    for (const part of header?.split(",") ?? []) {
      const match = /"([^"]*)";r=(\d+);t=(\d+)/.exec(part);
      if (match && match[2] === "0" && Number(match[3]) <= MAX_PRUDENT_WAIT_S) {
        this.hold(name, Number(match[3]) * 1000, match[1]!);
      }
    }
  }

  #lane(name: string): Lane {
    let lane = this.#lanes.get(name);
    if (!lane) {
      lane = { notBefore: 0, tail: Promise.resolve(), waiting: 0 };
      this.#lanes.set(name, lane);
    }
    return lane;
  }
}

/** A window that is longer may be shared with others; there the refusal itself says how long. */
const MAX_PRUDENT_WAIT_S = 1;

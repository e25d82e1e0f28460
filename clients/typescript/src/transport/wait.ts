/** Waits that end with a signal, and the jitter of repeats. */
import { Closed } from "../errors.js";

/** The calls that a signal makes when it aborts. */
const waiting = new WeakMap<AbortSignal, { readonly calls: Set<() => void>; readonly listener: () => void }>();

/**
 * Calls `stop` when the signal aborts. Returns what takes this back. Any number of calls share one
 * listener: Node warns of a leak at eleven, and a handler may make fifty calls at once.
 */
export function onAbort(signal: AbortSignal | null | undefined, stop: () => void): () => void {
  if (!signal) return () => {};
  let shared = waiting.get(signal);
  if (!shared) {
    const calls = new Set<() => void>();
    const listener = (): void => calls.forEach((call) => call());
    shared = { calls, listener };
    waiting.set(signal, shared);
    signal.addEventListener("abort", listener, { once: true });
  }
  const { calls, listener } = shared;
  calls.add(stop);
  return () => {
    if (!calls.delete(stop) || calls.size > 0) return;
    waiting.delete(signal);
    signal.removeEventListener("abort", listener);
  };
}

/** An end whose signal is made when it is asked for: most handlers ask for none. */
export class Ending {
  #controller: AbortController | null = null;
  #hasCome = false;

  get hasCome(): boolean {
    return this.#hasCome;
  }

  get signal(): AbortSignal {
    this.#controller ??= new AbortController();
    if (this.#hasCome) this.#controller.abort();
    return this.#controller.signal;
  }

  abort(): void {
    this.#hasCome = true;
    this.#controller?.abort();
  }
}

/** Resolves after `ms`; rejects with `Closed` when the signal aborts. */
export function sleep(ms: number, signal?: AbortSignal | null): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(new Closed());
    const stop = (): void => {
      clearTimeout(timer);
      reject(new Closed());
    };
    const timer = setTimeout(() => {
      stay();
      resolve();
    }, ms);
    const stay = onAbort(signal, stop);
  });
}

/** Full jitter: anything from 0 to a bound that doubles. */
export function fullJitter(attempt: number, firstMs: number, maxMs: number): number {
  return Math.random() * Math.min(maxMs, firstMs * 2 ** attempt);
}

const FIRST_RECONNECT_MS = 500;
const MAX_RECONNECT_MS = 30_000;

/** The wait before a lost connection, or a poll that failed, is tried again. */
export function reconnectJitter(attempt: number): number {
  return fullJitter(attempt, FIRST_RECONNECT_MS, MAX_RECONNECT_MS);
}

const FIRST_OUTAGE_MS = 1_000;
const MAX_OUTAGE_MS = 30_000;

/** The wait for a service that is away, before the same is tried again. */
export function outageJitter(attempt: number): number {
  return fullJitter(attempt, FIRST_OUTAGE_MS, MAX_OUTAGE_MS);
}

/** A promise with its ends. */
export interface Deferred<T> {
  readonly promise: Promise<T>;
  resolve(value: T): void;
  reject(error: unknown): void;
}

export function deferred<T>(): Deferred<T> {
  let resolve!: (value: T) => void;
  let reject!: (error: unknown) => void;
  const promise = new Promise<T>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  // Somebody may look at it only later.
  promise.catch(() => {});
  return { promise, resolve, reject };
}

/** The agent's inbox: events taken in by their order, handled, retried, acknowledged. */
import { observe } from "../core/session.js";
import type { EventObject, ToolCallOutcome } from "../core/types.js";
import { isOutage } from "../errors.js";
import type { HookCaller, Logger } from "../hooks.js";
import { Load } from "../transport/load.js";
import { outageJitter, sleep } from "../transport/wait.js";
import { Dispatcher } from "./dispatcher.js";
import { type AgentOptions, DEFAULT_RETRY_DELAYS_MS } from "./options.js";
import type { AgentParts } from "./parts.js";
import type { Processor } from "./processor.js";
import type { Begin } from "./resyncs.js";

const DEFAULT_CONCURRENT_CONVERSATIONS = 8;
const ACK_INTERVAL_MS = 200;
const STOP_GRACE_MS = 25_000;
/** The wait before a store that has failed is tried again. */
export const KEEP_RETRY_MS = 5_000;

export interface InboxParts {
  readonly options: AgentOptions;
  readonly processor: Processor;
  readonly hooks: HookCaller;
  readonly logger: Logger;
  readonly parts: AgentParts;
  /** Aborts when no more events are taken. */
  readonly stopping: AbortSignal;
  /** The agent stops for a handler's error, as its developer chose. */
  readonly onFailure: (error: unknown) => void;
  /** Keeps what was learned; false if it could not be kept. */
  readonly keep: () => Promise<boolean>;
  /** Tells the server a cursor; false while it cannot. */
  readonly sendAck: (cursor: string) => boolean;
}

export class Inbox {
  readonly #dispatcher: Dispatcher;
  /** Aborts the handlers that do not end in time. */
  readonly #handling = new Set<AbortController>();
  #intake: Promise<void> = Promise.resolve();
  /** The cursor of the last event taken in. */
  received: string | null = null;
  /** The history that cursors belong to. */
  #epoch: string | null = null;
  /** Handled, and not acknowledged yet. */
  ackable: string | null = null;
  /** Numbers up to this one were in the inbox before this connection. */
  replayedTo = 0;
  #ackTimer: ReturnType<typeof setTimeout> | null = null;
  /** The events that were taken in and are not handled. */
  readonly load = new Load();
  readonly #lengths = new WeakMap<EventObject, number>();

  constructor(private readonly setup: InboxParts) {
    this.#dispatcher = new Dispatcher({
      concurrency: setup.options.concurrency ?? DEFAULT_CONCURRENT_CONVERSATIONS,
      handle: (event) => this.#handle(event),
      onProgress: (cursor) => this.#progress(cursor),
    });
  }

  /** Takes in an event whose frame has this length. A standby only learns from it. */
  take(event: EventObject, length: number, isStandby: boolean): void {
    if (this.setup.stopping.aborted) return this.load.release();
    this.load.add(length);
    this.#lengths.set(event, length);
    if (!isStandby) {
      this.received = event.cursor;
      this.#epoch = epochOf(event.cursor);
    }
    const { toolCalls, session } = this.setup.parts;
    if (event.event === "artifact_response") {
      toolCalls.deliver(event.data as unknown as ToolCallOutcome);
    }
    this.#intake = this.#intake.then(async () => {
      await observe(event, session, this.setup.logger);
      if (isStandby || this.setup.stopping.aborted) this.load.remove(length);
      else this.#dispatcher.push(event);
    });
  }

  /**
   * Earlier cursors mean nothing any more. Reading begins after the last acknowledgement, or at
   * another place if that is too old as well.
   */
  resync(details: { oldest: string; head: string }, begin: Begin): void {
    this.received = begin === "acknowledged" ? null : details[begin];
    this.#epoch = epochOf(details.head);
    this.ackable = null;
    this.setup.parts.session.missedEvents();
    this.setup.hooks.call("resync", details);
  }

  /** Runs the handlers of an event until they succeed, or the last try has failed. */
  async #handle(event: EventObject): Promise<void> {
    const stop = new AbortController();
    this.#handling.add(stop);
    try {
      await this.#tryUntilHandled(event, stop.signal);
    } finally {
      this.#handling.delete(stop);
      this.load.remove(this.#lengths.get(event) ?? 0);
    }
  }

  async #tryUntilHandled(event: EventObject, signal: AbortSignal): Promise<void> {
    const { options, processor, parts, hooks, stopping } = this.setup;
    const delays = options.retryDelays ?? DEFAULT_RETRY_DELAYS_MS;
    const route = `handler of ${event.event}`;
    let failures = 0;
    let outages = 0;
    for (;;) {
      try {
        const isReplayed = event.seq <= this.replayedTo;
        return await processor.process(event, parts, isReplayed, signal);
      } catch (error) {
        if (stopping.aborted) throw error;
        if (isOutage(error)) {
          // The handler is not to blame: this uses up no tries.
          const wait_ms = Math.round(outageJitter(outages++));
          hooks.call("retry", { attempt: outages, wait_ms, route });
          await sleep(wait_ms, stopping);
          continue;
        }
        outages = 0;
        const wait_ms = delays[failures++];
        if (wait_ms === undefined) return this.#deadLetter(event, error);
        hooks.call("retry", { attempt: failures, wait_ms, route });
        await sleep(wait_ms, stopping);
      }
    }
  }

  #deadLetter(event: EventObject, error: unknown): void {
    const { event_id, event: name } = event;
    this.setup.hooks.call("dead_letter", { event_id, event: name, error });
    if (this.setup.options.onDeadLetter !== "stop") return;
    this.setup.onFailure(error);
    throw error;
  }

  #progress(cursor: string): void {
    // An acknowledgement of another history would say nothing.
    if (epochOf(cursor) !== this.#epoch) return;
    this.ackable = cursor;
    this.#flushIn(ACK_INTERVAL_MS);
  }

  #flushIn(ms: number): void {
    this.#ackTimer ??= setTimeout(() => void this.flushAck(), ms);
  }

  #stopTimer(): void {
    if (this.#ackTimer) clearTimeout(this.#ackTimer);
    this.#ackTimer = null;
  }

  /** The cursor to acknowledge; null if the lessons of the events up to it could not be kept. */
  async kept(): Promise<string | null> {
    const cursor = this.ackable;
    if (cursor === null || !(await this.setup.keep())) return null;
    // Meanwhile it may have been told, or have become one of another history.
    const isCurrent = this.ackable !== null && epochOf(cursor) === this.#epoch;
    return isCurrent ? cursor : null;
  }

  async flushAck(): Promise<void> {
    this.#stopTimer();
    const cursor = await this.kept();
    if (cursor === null) {
      if (this.ackable !== null) this.#flushIn(KEEP_RETRY_MS);
    } else if (this.setup.sendAck(cursor) && this.ackable === cursor) {
      this.ackable = null;
    }
  }

  /** All events taken in are handled, or the agent stops. */
  async settled(): Promise<void> {
    await this.#intake;
    const { stopping } = this.setup;
    await new Promise<void>((resolve) => {
      const done = (): void => {
        stopping.removeEventListener("abort", done);
        resolve();
      };
      if (stopping.aborted) return resolve();
      stopping.addEventListener("abort", done, { once: true });
      void this.#dispatcher.idle().then(done);
    });
  }

  /** Begins no further event, and lets handlers end for a while. */
  async finish(): Promise<void> {
    this.#dispatcher.stop();
    this.load.release();
    const grace = new AbortController();
    const over = sleep(STOP_GRACE_MS, grace.signal).catch(() => {});
    await Promise.race([this.#dispatcher.idle(), over]);
    grace.abort();
    for (const handling of this.#handling) handling.abort();
    this.setup.parts.toolCalls.stop();
    await this.flushAck();
    this.#stopTimer();
  }
}

/** A cursor is the number of a history and the number of an event in it. */
function epochOf(cursor: string): string {
  return cursor.split("-")[0]!;
}

/** The agent's inbox: events taken in by their order, handled, retried, acknowledged. */
import { keysRead, observe } from "../core/session.js";
import type { EventObject, ToolCallOutcome } from "../core/types.js";
import { errorName, isOutage } from "../errors.js";
import type { HookCaller, Logger } from "../hooks.js";
import { KEEP_RETRY_MS } from "../stores/lessons.js";
import { Load } from "../transport/load.js";
import { Ending, outageJitter, sleep } from "../transport/wait.js";
import { Dispatcher } from "./dispatcher.js";
import { type AgentOptions, DEFAULT_RETRY_DELAYS_MS } from "./options.js";
import type { AgentParts } from "./parts.js";
import type { Processor } from "./processor.js";
import type { Begin } from "./resyncs.js";

const DEFAULT_CONCURRENT_CONVERSATIONS = 8;
const ACK_INTERVAL_MS = 200;
const STOP_GRACE_MS = 25_000;
/** A handler that runs for so long is named in the log. */
const SLOW_HANDLER_MS = 300_000;

/** The server gives a lost connection's conversations to another process after 10 s. */
const KEEP_MS = 8_000;
/** The wait before a shared store that could not be read is read again. */
const ENTER_RETRY_MS = 1_000;

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
  /** Learns what other processes have stored; false if it could not be read. */
  readonly enter: (conversationId: string | null) => Promise<boolean>;
  /** Other processes have a share of the conversations. */
  readonly isShared: boolean;
}

export class Inbox {
  readonly #dispatcher: Dispatcher;
  /** Aborts the handlers that do not end in time. */
  readonly #handling = new Set<Ending>();
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
  /** Shared connections that have ended. */
  #losses = 0;

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
    if (!isStandby) this.setup.processor.arrive(event);
    const losses = this.#losses;
    this.#intake = this.#intake.then(async () => {
      if (losses !== this.#losses) return;
      await observe(event, session, this.setup.logger);
      if (losses !== this.#losses) return;
      // It holds up its own event: the others go on.
      const read = keysRead(event, session, this.setup.logger);
      if (isStandby || this.setup.stopping.aborted) this.load.remove(length);
      else this.#dispatcher.push(event, read);
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

  /**
   * The connection has ended, and with it this process's share of the conversations. Events
   * that wait come again. Handlers may go on until another process may have their conversations.
   */
  lost(wasSilent: boolean): void {
    if (this.setup.stopping.aborted) return;
    this.#losses += 1;
    this.ackable = null;
    this.#dispatcher.giveUp();
    this.load.clear();
    const handling = [...this.#handling];
    const abort = (): void => handling.forEach((each) => each.abort());
    const timer = setTimeout(abort, wasSilent ? 0 : KEEP_MS);
    (timer as { unref?: () => void }).unref?.();
  }

  /** Runs the handlers of an event until they succeed, or the last try has failed. */
  async #handle(event: EventObject): Promise<void> {
    const ending = new Ending();
    this.#handling.add(ending);
    const slow = setTimeout(() => this.#tellSlow(event), SLOW_HANDLER_MS);
    // A line of the log keeps no process alive.
    (slow as { unref?: () => void }).unref?.();
    const losses = this.#losses;
    try {
      while (!(await this.setup.enter(event.conversation_id ?? null))) {
        // It is not known whether another process has handled it.
        await sleep(ENTER_RETRY_MS, this.setup.stopping);
      }
      await this.#tryUntilHandled(event, ending);
      // No ack follows. Another process is given the event soon, and looks into the store.
      if (losses !== this.#losses) await this.setup.keep();
    } finally {
      clearTimeout(slow);
      this.#handling.delete(ending);
      if (losses === this.#losses) this.load.remove(this.#lengths.get(event) ?? 0);
    }
  }

  /** Its conversation waits for it, and so do the acknowledgements of all. */
  #tellSlow({ event_id: id, event }: EventObject): void {
    const details = { id, event, seconds: SLOW_HANDLER_MS / 1_000 };
    this.setup.logger.warn("the handlers of an event still run", details);
  }

  async #tryUntilHandled(event: EventObject, ending: Ending): Promise<void> {
    const { options, processor, parts, hooks, stopping } = this.setup;
    const delays = options.retryDelays ?? DEFAULT_RETRY_DELAYS_MS;
    const route = `handler of ${event.event}`;
    let failures = 0;
    let outages = 0;
    for (;;) {
      if (ending.hasCome) ending.signal.throwIfAborted();
      try {
        const isReplayed = this.setup.isShared || event.seq <= this.replayedTo;
        return await processor.process(event, parts, isReplayed, ending);
      } catch (error) {
        if (stopping.aborted || ending.hasCome) throw error;
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
    const details = { event_id, event: name, error: errorName(error) };
    this.setup.logger.error("the handlers of an event have failed", details);
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
    const [cursor, losses] = [this.ackable, this.#losses];
    if (cursor === null || !(await this.setup.keep()) || losses !== this.#losses) return null;
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

  /** Whether all events taken in are handled before the time is over or the agent stops. */
  async settled(ms: number): Promise<boolean> {
    const over = new AbortController();
    const { stopping } = this.setup;
    const stop = (): void => over.abort();
    if (stopping.aborted) stop();
    stopping.addEventListener("abort", stop, { once: true });
    const handled = this.#intake.then(() => this.#dispatcher.idle()).then(() => true);
    const tooLong = sleep(ms, over.signal).then(
      () => false,
      () => false,
    );
    try {
      return await Promise.race([handled, tooLong]);
    } finally {
      over.abort();
      stopping.removeEventListener("abort", stop);
    }
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

/** The ways by which events come: a socket, long polls, deliveries. */
import { OtherEventData, resolvedEvent } from "../core/large.js";
import { keysRead, observe } from "../core/session.js";
import type { EventObject, ToolCallOutcome } from "../core/types.js";
import { BlindpipeError, Closed, errorName, isOutage } from "../errors.js";
import { CursorExpired } from "../generated/errors.js";
import type { HookCaller, Logger } from "../hooks.js";
import type { Http } from "../transport/http.js";
import { type Frame, Socket, defaultWebSocket } from "../transport/socket.js";
import { KEEP_RETRY_MS } from "../stores/lessons.js";
import { reconnectJitter, sleep } from "../transport/wait.js";
import type { Inbox } from "./inbox.js";
import type { AgentOptions } from "./options.js";
import type { AgentParts } from "./parts.js";
import { AlreadyRunning, type Processor } from "./processor.js";
import { Resyncs } from "./resyncs.js";
import {
  type WebhookHandler,
  type WebhookSecrets,
  deliveredBytes,
  readDelivery,
  standardKeys,
  verifyDelivery,
} from "./webhook.js";

const POLL_WAIT_S = 25;
const POLL_PAGE_EVENTS = 1_000;
/** A page with fewer events has all that there were. One with more may have ended at its 4 MB. */
const SHORT_PAGE_EVENTS = 100;
/** A poll waits so long for the handlers of the one before it. Then it looks for other events. */
const SETTLE_MS = 10_000;
const WEBHOOK_DEADLINE_MS = 9_000;
const WEBHOOK_RETRY_S = 5;

/** A socket that feeds an inbox, and leaves a backlog on the server while the inbox is full. */
export class SocketReader {
  readonly socket: Socket;
  isStandby: boolean;
  /** The rest of this connection's events comes again with the next one. */
  #isDropped = false;
  readonly #resyncs = new Resyncs();

  constructor(
    private readonly options: AgentOptions,
    hooks: HookCaller,
    private readonly inbox: Inbox,
    http: Http,
    signal: AbortSignal,
    isStandby: boolean,
    /** The group whose conversations this process shares. */
    private readonly group: string | null,
  ) {
    this.isStandby = isStandby;
    this.socket = new Socket({
      url: options.url,
      webSocket: options.webSocket ?? defaultWebSocket,
      hooks,
      auth: () => this.#auth(),
      renew: async () => false,
      holders: () => holders(http, options.agentId),
      onReady: (frame) => this.#begin(frame),
      onFrame: (frame, length) => this.#take(frame, length),
      onLost: (wasSilent) => {
        if (group !== null) inbox.lost(wasSilent);
      },
      signal,
    });
  }

  async #auth(): Promise<Frame> {
    await this.inbox.load.room();
    const { agentId, token } = this.options;
    if (this.group !== null) {
      return { type: "auth", agent_id: agentId, token, mode: "shared", group: this.group };
    }
    const { received } = this.inbox;
    this.#resyncs.hasResumed = received !== null && !this.isStandby;
    const resume = this.#resyncs.hasResumed ? { resume: received } : {};
    return { type: "auth", agent_id: agentId, token, ...resume };
  }

  #begin(frame: Frame): void {
    this.#isDropped = false;
    this.inbox.replayedTo = Number((frame["replay"] as { to?: number } | undefined)?.to ?? 0);
    // Acks that the last connection did not take go to this one.
    void this.inbox.flushAck();
  }

  #take(frame: Frame, length: number): void {
    if (this.#isDropped) return;
    if (frame.type === "event") {
      this.#resyncs.settled();
      this.inbox.take(frame as unknown as EventObject, length, this.isStandby);
    }
    if (frame.type === "resync_required") {
      const begin = this.#resyncs.next();
      this.inbox.resync({ oldest: String(frame["oldest"]), head: String(frame["head"]) }, begin);
      // This connection goes on at the head. The next one begins at what was not handled.
      if (!this.isStandby && begin !== "head") this.#drop();
      return;
    }
    if (frame.type === "caught_up") this.#resyncs.settled();
    if (this.inbox.load.isFull) this.#drop();
  }

  #drop(): void {
    this.#isDropped = true;
    this.socket.drop();
  }

  /** From the last acknowledgement on, events are handled here. */
  activate(): void {
    if (!this.isStandby) return;
    this.isStandby = false;
    this.#resyncs.settled();
    this.inbox.received = null;
    this.#drop();
  }
}

async function holders(http: Http, agentId: string): Promise<readonly string[]> {
  const path = `/agents/${agentId}`;
  const agent = await http.data<{ connections?: { connection_id: string }[] }>({
    method: "GET",
    path,
  });
  return (agent.connections ?? []).map((connection) => connection.connection_id);
}

/** Long polls until the signal. The cursor passed is the one that is acknowledged. */
export async function readByPoll(
  parts: AgentParts,
  inbox: Inbox,
  signal: AbortSignal,
): Promise<void> {
  const path = `/agents/${parts.agentId}/messages/poll`;
  const resyncs = new Resyncs();
  let cursor: string | undefined;
  let failures = 0;
  const pause = (): Promise<void> =>
    sleep(reconnectJitter(failures++), signal).catch(() => {});
  // Until a page is short, its events may have been there before this run.
  let looksBack = true;
  /** The cursors of events that come again, since an earlier one is still being handled. */
  const taken = new Set<string>();
  while (!signal.aborted) {
    try {
      const wait: number = looksBack ? 0 : POLL_WAIT_S;
      const query = { cursor, wait, limit: POLL_PAGE_EVENTS };
      const page = await parts.http.call<EventObject[]>({ method: "GET", path, query, signal });
      failures = 0;
      resyncs.settled();
      if (looksBack) inbox.replayedTo = page.data.at(-1)?.seq ?? inbox.replayedTo;
      looksBack &&= page.data.length >= SHORT_PAGE_EVENTS;
      // A page is 4 MB at most, and the next one is read when this one is handled.
      for (const event of page.data) {
        if (taken.has(event.cursor)) continue;
        taken.add(event.cursor);
        inbox.take(event, 0, false);
      }
      const isSettled = await inbox.settled(SETTLE_MS);
      const end = isSettled ? page.nextCursor : null;
      cursor = (await keptCursor(inbox, signal)) ?? cursor ?? end ?? undefined;
      if (isSettled) taken.clear();
    } catch (error) {
      if (error instanceof Closed) break;
      if (error instanceof CursorExpired) {
        const { oldest, head } = error.params;
        resyncs.hasResumed = cursor !== undefined;
        const begin = resyncs.next();
        inbox.resync({ oldest: String(oldest), head: String(head) }, begin);
        taken.clear();
        cursor = inbox.received ?? undefined;
        if (begin === "head") await pause();
      } else if (isOutage(error) || (error instanceof BlindpipeError && error.status >= 500)) {
        await pause();
      } else {
        throw error;
      }
    }
  }
  await inbox.finish();
  const last = await inbox.kept();
  if (last === null) return;
  await ackByRest(parts, last).catch((error: unknown) => {
    // The next run is given the same events again.
    if (!isOutage(error)) throw error;
  });
}

/** The next poll acknowledges, so it waits until the lessons of what was handled are kept. */
async function keptCursor(inbox: Inbox, signal: AbortSignal): Promise<string | null> {
  for (;;) {
    const cursor = await inbox.kept();
    if (cursor !== null || inbox.ackable === null) return cursor;
    await sleep(KEEP_RETRY_MS, signal);
  }
}

async function ackByRest({ http, agentId }: AgentParts, cursor: string): Promise<void> {
  const body = { cursor };
  await http.data({ method: "POST", path: `/agents/${agentId}/ack`, body, repeatable: true });
}

/** The parts of an agent that a delivery needs. */
export interface Delivered {
  readonly parts: AgentParts;
  readonly processor: Processor;
  /** Keeps what was learned; false if it could not be kept. */
  readonly save: () => Promise<boolean>;
  /** Learns what other processes have stored; false if it could not be read. */
  readonly enter: (conversationId: string | null) => Promise<boolean>;
}

/** A receiver, which never rejects: genuine deliveries are answered 200 once their handler has ended. */
export function receiver(
  secrets: WebhookSecrets,
  started: () => Promise<Delivered>,
  logger: Logger,
): WebhookHandler {
  standardKeys(secrets);
  return async (request) => {
    const body = await deliveredBytes(request);
    if (body instanceof Response) return body;
    if (!(await verifyDelivery(secrets, request.headers, body))) {
      return new Response("not genuine", { status: 401 });
    }
    const delivery = readDelivery(body);
    if (!delivery) return new Response("no delivery", { status: 400 });
    if (delivery.type === "challenge") return Response.json({ challenge: delivery.challenge });
    if (delivery.type === "test") return Response.json({});
    const deadline = new AbortController();
    const timer = setTimeout(() => deadline.abort(), WEBHOOK_DEADLINE_MS);
    const handle = (event: EventObject) => deliver(event, started, deadline.signal, logger);
    try {
      if (delivery.type === "event") return await handle(delivery.event);
      return await deliverBatch(delivery.events, handle);
    } finally {
      clearTimeout(timer);
    }
  };
}

/**
 * Handles those of a conversation in their order, and conversations side by side. The answer names
 * what has failed. If nothing succeeds, it is that of the first event.
 */
async function deliverBatch(
  events: readonly EventObject[],
  handle: (event: EventObject) => Promise<Response>,
): Promise<Response> {
  const conversations = new Map<string | null, EventObject[]>();
  for (const event of events) {
    const id = event.conversation_id ?? null;
    conversations.set(id, [...(conversations.get(id) ?? []), event]);
  }
  const ended = await Promise.all(
    [...conversations.values()].map(async (own) => {
      for (const [n, event] of own.entries()) {
        const answer = await handle(event);
        if (!answer.ok) return { unfinished: own.slice(n), answer };
      }
      return { unfinished: [], answer: Response.json({}) };
    }),
  );
  const unfinished = ended.reduce((sum, one) => sum + one.unfinished.length, 0);
  const first = ended[0];
  if (first && unfinished === events.length) return first.answer;
  // Those after a failed one in its conversation come again by themselves.
  const failed = ended.flatMap((one) => one.unfinished.slice(0, 1) as { delivery_id?: string }[]);
  return Response.json({ failed: failed.map((one) => one.delivery_id) });
}

async function deliver(
  event: EventObject,
  started: () => Promise<Delivered>,
  signal: AbortSignal,
  logger: Logger,
): Promise<Response> {
  const tooSlow = new Promise<"too slow">((resolve) => {
    signal.addEventListener("abort", () => resolve("too slow"), { once: true });
  });
  try {
    if (signal.aborted) return later("not in time");
    const handled = deliverNow(event, started, signal, logger);
    // After the deadline nobody waits for it.
    handled.catch(() => {});
    const outcome = await Promise.race([handled, tooSlow]);
    return outcome === "too slow" ? later("not in time") : Response.json({});
  } catch (error) {
    if (error instanceof AlreadyRunning) return later("an earlier delivery is being handled");
    if (error instanceof OtherEventData) {
      logger.error(error.message, { event_id: event.event_id });
      return later(error.message);
    }
    if (isOutage(error)) return later("the service is away");
    logger.error("a handler has failed", { name: errorName(error) });
    return new Response("the handler has failed", { status: 500 });
  }
}

/** Asks for another try. */
function later(why: string): Response {
  const headers = { "retry-after": String(WEBHOOK_RETRY_S) };
  return new Response(why, { status: 503, headers });
}

async function deliverNow(
  delivered: EventObject,
  started: () => Promise<Delivered>,
  signal: AbortSignal,
  logger: Logger,
): Promise<void> {
  const { parts, processor, save, enter } = await started();
  const event = await resolvedEvent(parts.http, delivered);
  if (!(await enter(event.conversation_id ?? null))) throw new Error("the store has failed");
  if (event.event === "artifact_response") {
    parts.toolCalls.deliver(event.data as unknown as ToolCallOutcome);
  }
  processor.arrive(event);
  await observe(event, parts.session, logger);
  await keysRead(event, parts.session, logger);
  // A delivery tells which attempt it is.
  const isReplayed = Number((delivered as { attempt?: number }).attempt ?? 1) > 1;
  await processor.process(event, parts, isReplayed, { signal });
  // A delivery that is answered well does not come again.
  if (!(await save())) throw new Error("what was learned could not be kept");
}

/** A socket to `/ws` that comes back: handshake, liveness, reconnects. */
import { Closed, ConnectionLost } from "../errors.js";
import { type HookCaller } from "../hooks.js";
import { makeError } from "./http.js";
import { type Deferred, deferred, outageJitter, reconnectJitter, sleep } from "./wait.js";

/** A frame of the server or the client. */
export interface Frame {
  readonly type: string;
  readonly [name: string]: unknown;
}

/** The part of a WebSocket that browsers, Node and `ws` all have. */
export interface WebSocketLike {
  onopen: ((event: never) => void) | null;
  onmessage: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  send(text: string): void;
  close(code?: number): void;
}

export type WebSocketFactory = (url: string) => WebSocketLike | Promise<WebSocketLike>;

/** The platform's own WebSocket, or `ws` where there is none (Node 20). */
export const defaultWebSocket: WebSocketFactory = async (url) => {
  if (typeof WebSocket === "function") return new WebSocket(url) as unknown as WebSocketLike;
  const { WebSocket: Ws } = await import("ws");
  return new Ws(url, { perMessageDeflate: false }) as unknown as WebSocketLike;
};

export interface SocketOptions {
  readonly url: string;
  readonly webSocket: WebSocketFactory;
  readonly hooks: HookCaller;
  /** The `auth` frame of this moment. */
  readonly auth: () => Promise<Frame>;
  /**
   * Renews the token after a 4401; true if a new one is there, false if the session has ended. It
   * throws where nobody can say.
   */
  readonly renew: () => Promise<boolean>;
  /** The connections or devices that hold the places, for a 4409. */
  readonly holders: () => Promise<readonly string[]>;
  /** A frame, with the length of its text. */
  readonly onFrame: (frame: Frame, length: number) => void;
  /** A new connection begins, before its first event. */
  readonly onReady: (frame: Frame) => void;
  /** A connection has ended; whether the client took it for dead. */
  readonly onLost?: (wasSilent: boolean) => void;
  readonly signal: AbortSignal;
}

const LIMIT_WAIT_MS = 10_000;
const FLOOD_WAIT_MS = 5_000;
const HANDSHAKE_TIMEOUT_MS = 15_000;
const SILENCE_GRACE_MS = 15_000;
const DEFAULT_HEARTBEAT_MS = 25_000;
const CLOSE_TIMEOUT_MS = 5_000;
const CLOSE_CODE_NORMAL = 1000;
const CLOSE_CODE_NONE = 1006;
/** A local verdict: the connection said nothing for too long. */
const CLOSE_CODE_DEAD = 4999;

interface Ending {
  readonly code: number;
  readonly afterMs: number | null;
}

export class Socket {
  #current: WebSocketLike | null = null;
  /** Goes on without the end of the present connection. */
  #leave: () => void = () => {};
  #ready = false;
  #attempt = 0;
  #failedRenewals = 0;
  #reference = 0;
  /** The number of connections so far. */
  connection = 0;
  /** Who is told of refusals and of the end of a stream. */
  readonly #streams = new Map<string, (frame: Frame) => void>();
  readonly #answers = new Map<string, Deferred<Frame>>();

  constructor(private readonly options: SocketOptions) {}

  get isReady(): boolean {
    return this.#ready;
  }

  /** Stays connected until the signal aborts, or the server forbids it: then throws `Closed`. */
  async run(): Promise<void> {
    while (!this.options.signal.aborted) {
      const ending = await this.#connectOnce();
      this.#ready = false;
      this.#failAnswers();
      if (this.options.signal.aborted) return;
      const wait = await this.#waitAfter(ending);
      await sleep(wait, this.options.signal).catch(() => {});
    }
  }

  async #connectOnce(): Promise<Ending> {
    const { signal, webSocket, url } = this.options;
    let socket: WebSocketLike;
    let auth: Frame;
    try {
      auth = await this.options.auth();
      socket = await webSocket(`${url.replace(/^http/, "ws").replace(/\/$/, "")}/ws`);
    } catch (error) {
      if (error instanceof Closed) throw error;
      return { code: CLOSE_CODE_NONE, afterMs: null };
    }
    this.#current = socket;
    const closed = deferred<Ending>();
    const watch = new Liveness(socket, () =>
      closed.resolve({ code: CLOSE_CODE_DEAD, afterMs: null }),
    );
    this.#leave = () => closed.resolve({ code: CLOSE_CODE_NORMAL, afterMs: 0 });
    let goodbye: ReturnType<typeof setTimeout> | undefined;
    const stop = (): void => {
      socket.close(CLOSE_CODE_NORMAL);
      // The answer says that the last acknowledgement counts. A busy server may owe it for long.
      goodbye = setTimeout(() => this.#leave(), CLOSE_TIMEOUT_MS);
    };
    signal.addEventListener("abort", stop, { once: true });
    if (signal.aborted) stop();
    let afterMs: number | null = null;
    // Nothing that a listener throws has anybody to catch it.
    const lost = (): void => closed.resolve({ code: CLOSE_CODE_NONE, afterMs: null });
    socket.onopen = () => {
      try {
        socket.send(JSON.stringify(auth));
      } catch {
        lost();
      }
    };
    socket.onerror = () => {};
    socket.onmessage = (event: { data: unknown }) => {
      watch.heard();
      try {
        const text = String(event.data);
        const frame = JSON.parse(text) as Frame;
        if (frame.type === "reconnect") afterMs = Number(frame["after_ms"]);
        this.#take(frame, text.length, watch);
      } catch {
        // A frame that is none of the service's ends the connection: it may have lost something.
        socket.close(CLOSE_CODE_NORMAL);
        lost();
      }
    };
    socket.onclose = (event: { code: number }) => closed.resolve({ code: event.code, afterMs });
    const ending = await closed.promise;
    watch.stop();
    clearTimeout(goodbye);
    signal.removeEventListener("abort", stop);
    this.#current = null;
    socket.onmessage = null;
    this.options.onLost?.(ending.code === CLOSE_CODE_DEAD);
    this.options.hooks.call("disconnected", { code: ending.code });
    return ending;
  }

  #take(frame: Frame, length: number, watch: Liveness): void {
    switch (frame.type) {
      case "ready":
        this.#ready = true;
        this.connection += 1;
        watch.begin(Number(frame["heartbeat_interval_ms"] ?? DEFAULT_HEARTBEAT_MS));
        this.options.hooks.call("connected");
        this.options.onReady(frame);
        return;
      case "caught_up":
        this.#attempt = 0;
        this.#failedRenewals = 0;
        this.options.hooks.call("caught_up");
        break;
      case "auth.expiring":
        void this.#renewAuth();
        return;
      case "message.sent":
      case "artifact.requested":
      case "artifact.responded":
      case "error":
        this.#answer(frame);
        return;
      case "stream.cancel": {
        const hear = this.#streams.get(String(frame["stream_id"]));
        if (hear) return hear(frame);
      }
    }
    this.options.onFrame(frame, length);
  }

  /** Renews while this connection lasts. A session that has ended is told by its close code. */
  async #renewAuth(): Promise<void> {
    const connection = this.#current;
    const { signal, renew, auth } = this.options;
    for (let attempt = 0; connection === this.#current && !signal.aborted; attempt++) {
      try {
        if (!(await renew())) return;
        const { access_token } = (await auth()) as { access_token?: unknown };
        if (connection === this.#current) this.send({ type: "auth.renew", access_token });
        return;
      } catch {
        await sleep(outageJitter(attempt), signal).catch(() => {});
      }
    }
  }

  #answer(frame: Frame): void {
    const waiting = this.#answers.get(String(frame["ref"]));
    if (!waiting) {
      if (frame.type === "error") this.#streams.get(String(frame["stream_id"]))?.(frame);
      return;
    }
    this.#answers.delete(String(frame["ref"]));
    if (frame.type !== "error") return waiting.resolve(frame);
    const error = frame["error"] as {
      code: string;
      message: string;
      params: Record<string, unknown>;
    };
    waiting.reject(makeError(error.code, 0, error.message, error.params, null));
  }

  #failAnswers(): void {
    for (const waiting of this.#answers.values()) waiting.reject(new ConnectionLost());
    this.#answers.clear();
  }

  /** Writes a frame; false while there is no connection. */
  send(frame: Frame): boolean {
    if (!this.#ready || !this.#current) return false;
    try {
      this.#current.send(JSON.stringify(frame));
      return true;
    } catch {
      return false;
    }
  }

  /** Writes a frame and waits for its answer. */
  async request(frame: Frame, timeoutMs: number): Promise<Frame> {
    const ref = String(++this.#reference);
    const waiting = deferred<Frame>();
    this.#answers.set(ref, waiting);
    if (!this.send({ ...frame, ref })) waiting.reject(new ConnectionLost());
    const timer = setTimeout(() => waiting.reject(new ConnectionLost()), timeoutMs);
    try {
      return await waiting.promise;
    } finally {
      clearTimeout(timer);
      this.#answers.delete(ref);
    }
  }

  /** Has `hear` told of refusals and of the end of a stream, or nobody any more. */
  watch(streamId: string, hear: ((frame: Frame) => void) | null): void {
    if (hear) this.#streams.set(streamId, hear);
    else this.#streams.delete(streamId);
  }

  /** Leaves this connection at once; `run` makes another one. */
  drop(): void {
    this.#current?.close(CLOSE_CODE_NORMAL);
    this.#leave();
  }

  /** How long to wait before the next connection. Throws `Closed` where there is to be none. */
  async #waitAfter({ code, afterMs }: Ending): Promise<number> {
    if (afterMs !== null) return afterMs;
    switch (code) {
      case 4401:
        return this.#waitForRenewal(code);
      case 4400:
      case 4403:
      case 1002:
      case 1003:
      case 1007:
      case 1009:
        throw new Closed("the server ended the connection for good", code);
      case 4409: {
        const holders = await this.options.holders().catch(() => []);
        this.options.hooks.call("disconnected", { code, holders });
        return LIMIT_WAIT_MS;
      }
      case 4429:
        return FLOOD_WAIT_MS;
      case 1011:
      case 1012:
      case 1013:
      case 4410:
        // At once, but a server that ends every connection so is not asked without a pause.
        if (this.#attempt > 0) return this.#jitter();
        this.#attempt = 1;
        return 0;
      default:
        return this.#jitter();
    }
  }

  /** Only the service's own word ends a session: while it is away, nothing is known. */
  async #waitForRenewal(code: number): Promise<number> {
    let isRenewed: boolean;
    try {
      isRenewed = await this.options.renew();
    } catch {
      return outageJitter(this.#failedRenewals++);
    }
    this.#failedRenewals = 0;
    if (!isRenewed) throw new Closed("the credential was refused", code);
    return 0;
  }

  #jitter(): number {
    return reconnectJitter(this.#attempt++);
  }
}

/** A watch keeps no process alive. */
function unref(timer: ReturnType<typeof setTimeout>): void {
  (timer as { unref?: () => void }).unref?.();
}

/** Ends a connection that says nothing; asks for a sign of life before. */
class Liveness {
  #timer: ReturnType<typeof setTimeout>;
  #heartbeatMs = 0;
  #heardAt = Date.now();

  constructor(
    private readonly socket: WebSocketLike,
    private readonly onDead: () => void,
  ) {
    this.#timer = setTimeout(() => this.#die(), HANDSHAKE_TIMEOUT_MS);
    unref(this.#timer);
  }

  begin(heartbeatMs: number): void {
    this.#heartbeatMs = heartbeatMs;
    clearTimeout(this.#timer);
    this.#schedule(heartbeatMs);
  }

  heard(): void {
    this.#heardAt = Date.now();
  }

  #schedule(ms: number): void {
    this.#timer = setTimeout(() => this.#check(), ms);
    unref(this.#timer);
  }

  /** Browsers do not show the server's pings, so a frame asks for one that they show. */
  #check(): void {
    const silence = Date.now() - this.#heardAt;
    if (silence >= this.#heartbeatMs + SILENCE_GRACE_MS) return this.#die();
    if (silence >= this.#heartbeatMs - 1000) {
      try {
        this.socket.send('{"type":"ping"}');
      } catch {
        return this.#die();
      }
    }
    this.#schedule(Math.max(1000, Math.min(this.#heartbeatMs, SILENCE_GRACE_MS)));
  }

  #die(): void {
    this.onDead();
    try {
      this.socket.close();
    } catch {
      // It was closed already.
    }
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
}

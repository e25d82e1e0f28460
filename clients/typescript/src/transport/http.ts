/** REST calls: retries, pacing, errors. It never logs a body, a token or a query. */
import { ApiError, BlindpipeError, Closed, ConnectionLost } from "../errors.js";
import { ERROR_CLASSES, RateLimited } from "../generated/errors.js";
import { type HookCaller } from "../hooks.js";
import { Limited, Pacer } from "./pacer.js";
import { fullJitter, onAbort, sleep } from "./wait.js";

export type Fetch = typeof fetch;

const MAX_TRIES = 5;
const FIRST_RETRY_MS = 250;
const MAX_RETRY_MS = 8_000;
const MAX_LIMIT_WAIT_MS = 60_000;
const REQUEST_TIMEOUT_MS = 60_000;

export interface HttpOptions {
  readonly url: string;
  readonly fetch: Fetch;
  readonly hooks: HookCaller;
  /** The bearer token of this moment; null for public calls. */
  readonly token: () => string | null | Promise<string | null>;
  /** Called once per call that is answered 401; true if it is worth another try. */
  readonly renew?: () => Promise<boolean>;
}

export interface Call {
  readonly method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  readonly path: string;
  readonly query?: Readonly<Record<string, string | number | undefined>>;
  readonly body?: unknown;
  readonly bytes?: Uint8Array;
  readonly headers?: Readonly<Record<string, string>>;
  /** A repeat changes nothing: a send with an id. GETs and PUTs are so anyway. */
  readonly repeatable?: boolean;
  readonly signal?: AbortSignal | null | undefined;
  readonly timeoutMs?: number;
  /** Public calls send no token. */
  readonly isPublic?: boolean;
}

export interface Answer<T> {
  readonly data: T;
  readonly nextCursor: string | null;
  readonly status: number;
  readonly headers: Headers;
  /** All fields of the answer. */
  readonly body: Readonly<Record<string, unknown>>;
}

export class Http {
  readonly #pacer: Pacer;

  constructor(private readonly options: HttpOptions) {
    this.#pacer = new Pacer(options.hooks);
  }

  get url(): string {
    return this.options.url;
  }

  /** The `data` of an answer. */
  async data<T>(call: Call): Promise<T> {
    return (await this.call<T>(call)).data;
  }

  async call<T>(call: Call): Promise<Answer<T>> {
    const response = await this.bytes(call);
    const body = (await readBody(response)) as { data: T; next_cursor?: string | null };
    return {
      data: body.data,
      nextCursor: body.next_cursor ?? null,
      status: response.status,
      headers: response.headers,
      body,
    };
  }

  /** The items of all pages. */
  async *pages<T>(path: string, query: Call["query"] = {}): AsyncGenerator<T> {
    let cursor: string | undefined;
    do {
      const page = await this.call<T[]>({ method: "GET", path, query: { ...query, cursor } });
      yield* page.data;
      cursor = page.nextCursor ?? undefined;
    } while (cursor);
  }

  /** The successful answer itself. Every try sends equal bytes. */
  async bytes(call: Call): Promise<Response> {
    const body = call.bytes ?? (call.body === undefined ? undefined : JSON.stringify(call.body));
    const lane = `${call.method} ${routeOf(call.path)}`;
    const deadline = Date.now() + MAX_LIMIT_WAIT_MS;
    const state = { tries: 0, renewed: false };
    return this.#pacer.run(lane, deadline, call.signal ?? null, async () => {
      for (;;) {
        const outcome = await this.#attempt(call, body as BodyInit | undefined, lane);
        if (outcome instanceof Response) return outcome;
        if (outcome instanceof RateLimited) return limited(outcome);
        await this.#waitOrThrow(call, lane, outcome, state);
      }
    });
  }

  async #attempt(
    call: Call,
    body: BodyInit | undefined,
    lane: string,
  ): Promise<Response | BlindpipeError> {
    let response: Response;
    try {
      response = await this.#fetch(call, body);
    } catch (error) {
      if (call.signal?.aborted) throw new Closed();
      if (error instanceof BlindpipeError) throw error;
      return lostBy(error);
    }
    this.#pacer.observe(lane, response.headers.get("ratelimit"));
    return response.ok ? response : errorOf(response);
  }

  async #fetch(call: Call, body: BodyInit | undefined): Promise<Response> {
    const headers: Record<string, string> = { ...call.headers };
    if (body !== undefined && !call.bytes) headers["content-type"] = "application/json";
    const token = call.isPublic ? null : await this.options.token();
    if (token) headers["authorization"] = `Bearer ${token}`;
    // Of a signal that outlives many calls, nothing of a call may stay behind.
    const own = new AbortController();
    const stop = (): void => own.abort();
    const timer = setTimeout(stop, call.timeoutMs ?? REQUEST_TIMEOUT_MS);
    if (call.signal?.aborted) stop();
    const stay = onAbort(call.signal, stop);
    const { signal } = own;
    const init: RequestInit = { method: call.method, headers, signal, redirect: "error" };
    if (body !== undefined) init.body = body;
    try {
      return await whole(await this.options.fetch(address(this.options.url, call), init));
    } finally {
      clearTimeout(timer);
      stay();
    }
  }

  async #waitOrThrow(
    call: Call,
    lane: string,
    error: BlindpipeError,
    state: { tries: number; renewed: boolean },
  ): Promise<void> {
    if (error.code === "UNAUTHORIZED" && !state.renewed && !call.isPublic) {
      state.renewed = true;
      if (await this.options.renew?.()) return;
      throw error;
    }
    state.tries += 1;
    if (!mayRepeat(call) || !isPassing(error) || state.tries >= MAX_TRIES) throw error;
    const hinted = Number(error.params["retry_after_ms"] ?? 0);
    const wait = Math.max(hinted, fullJitter(state.tries - 1, FIRST_RETRY_MS, MAX_RETRY_MS));
    const route = lane;
    this.options.hooks.call("retry", { attempt: state.tries, wait_ms: Math.round(wait), route });
    await sleep(wait, call.signal);
  }
}

/** Codes of Node and OpenSSL for a certificate that is not trusted, or not of this host. */
const CERTIFICATE_FAULT = /CERT|ERR_TLS|UNABLE_TO_(GET|VERIFY)|SELF_SIGNED|HOSTNAME_MISMATCH/;

/** The loss with its cause. Of a certificate the message says so: no repeat mends it. */
function lostBy(cause: unknown): ConnectionLost {
  let found = cause;
  for (let depth = 0; found instanceof Error && depth < 8; depth++) {
    const { code } = found as { code?: unknown };
    if (typeof code === "string" && CERTIFICATE_FAULT.test(code)) {
      const message =
        `the connection was lost: the server's certificate is not trusted (${code}); ` +
        "Node reads further authorities from NODE_EXTRA_CA_CERTS";
      return new ConnectionLost(message, { cause });
    }
    found = found.cause;
  }
  return new ConnectionLost(undefined, { cause });
}

/** The answer with its whole body. An answer that is cut short counts as lost. */
async function whole(response: Response): Promise<Response> {
  const { status, statusText, headers } = response;
  const body = await response.arrayBuffer();
  return new Response(body.byteLength > 0 ? body : null, { status, statusText, headers });
}

/** The wait of a refusal, and up to a tenth more, so that not all come back at once. */
function limited(error: RateLimited): Limited {
  const hinted = Number(error.params["retry_after_ms"] ?? 1000);
  const waitMs = hinted * (1 + Math.random() / 10);
  return new Limited(error, waitMs, String(error.params["scope"] ?? ""));
}

/** GETs, PUTs, and sends with an id. */
function mayRepeat(call: Call): boolean {
  return call.repeatable ?? (call.method === "GET" || call.method === "PUT");
}

function isPassing(error: BlindpipeError): boolean {
  return error instanceof ConnectionLost || [502, 503, 504].includes(error.status);
}

/** Ids leave the path: budgets are counted per route, not per id. */
function routeOf(path: string): string {
  return path.replace(/\/[0-9A-Za-z-]*[0-9][0-9A-Za-z-]{9,}/g, "/:id");
}

function address(base: string, call: Call): string {
  const url = new URL(base.replace(/\/$/, "") + call.path);
  for (const [name, value] of Object.entries(call.query ?? {})) {
    if (value !== undefined) url.searchParams.set(name, String(value));
  }
  return url.href;
}

async function readBody(response: Response): Promise<unknown> {
  try {
    return await response.json();
  } catch {
    throw new ConnectionLost("the answer was cut short");
  }
}

async function errorOf(response: Response): Promise<BlindpipeError> {
  const body = (await response.json().catch(() => ({}))) as {
    error?: { code?: string; message?: string; params?: Record<string, unknown> };
  };
  const params = { ...body.error?.params };
  const after = Number(response.headers.get("retry-after"));
  if (after > 0) params["retry_after_ms"] ??= after * 1000;
  return makeError(
    body.error?.code ?? `HTTP_${response.status}`,
    response.status,
    body.error?.message ?? "the server refused",
    params,
    response.headers.get("x-request-id"),
  );
}

/** The error of a code, of the class of that code. */
export function makeError(
  code: string,
  status: number,
  message: string,
  params: Readonly<Record<string, unknown>>,
  requestId: string | null,
): BlindpipeError {
  const Class = ERROR_CLASSES[code] ?? ApiError;
  return new Class({ code, status, message, params, requestId });
}

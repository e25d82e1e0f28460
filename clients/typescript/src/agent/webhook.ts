/** Deliveries of a webhook: genuine ones become events. */
import { fromBase64, utf8, concat, type Bytes } from "../e2ee/bytes.js";
import { UsageError } from "../e2ee/errors.js";
import type { EventObject } from "../core/types.js";

const TOLERANCE_SECONDS = 300;
/** Read before the signature is checked, so that nobody fills the memory without a secret. */
const MAX_DELIVERY_BYTES = 2 * 1024 * 1024;
/** A shorter secret can be guessed, and an unset variable is an empty one. */
const MIN_SECRET_BYTES = 24;

/** Any Fetch-shaped framework takes this as it is. */
export type WebhookHandler = (request: Request) => Promise<Response>;

/** A webhook's secret; the new and the old one while it is rotated. */
export type WebhookSecrets = string | readonly string[];

/**
 * Whether a delivery is genuine, over its bytes as they came and in constant time. Throws
 * `UsageError` for secrets that are none.
 */
export async function verifyDelivery(
  secrets: WebhookSecrets,
  headers: Headers,
  body: Uint8Array,
  nowSeconds: number = Date.now() / 1000,
): Promise<boolean> {
  const keys = standardKeys(secrets);
  const id = headers.get("webhook-id") ?? "";
  const timestamp = headers.get("webhook-timestamp") ?? "";
  if (!/^[0-9]{1,12}$/.test(timestamp)) return false;
  if (Math.abs(nowSeconds - Number(timestamp)) > TOLERANCE_SECONDS) return false;
  const text = concat(utf8(`${id}.${timestamp}.`), body);
  let genuine = false;
  for (const signature of (headers.get("webhook-signature") ?? "").split(" ")) {
    if (!signature.startsWith("v1,")) continue;
    for (const key of keys) genuine = (await matches(key, signature.slice(3), text)) || genuine;
  }
  return genuine;
}

/** The keys of secrets. Throws `UsageError` for an empty or short one. */
export function standardKeys(secrets: WebhookSecrets): readonly Bytes[] {
  const keys = (typeof secrets === "string" ? [secrets] : secrets).map(standardKey);
  if (keys.length === 0) throw new UsageError("a webhook needs its secret");
  return keys;
}

/** The bytes behind `whsec_`, or the characters of a secret without that prefix. */
function standardKey(secret: string): Bytes {
  let key: Bytes;
  try {
    key = secret.startsWith("whsec_") ? fromBase64(secret.slice(6)) : utf8(secret);
  } catch {
    throw new UsageError("a webhook secret is whsec_ and base64, or a text");
  }
  if (key.length < MIN_SECRET_BYTES) {
    throw new UsageError("a webhook secret has 24 bytes or more");
  }
  return key;
}

async function matches(key: Bytes, signature: string, text: Bytes): Promise<boolean> {
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const imported = await crypto.subtle.importKey("raw", key, algorithm, false, ["verify"]);
  try {
    return await crypto.subtle.verify("HMAC", imported, fromBase64(signature), text);
  } catch {
    return false;
  }
}

/** A delivery's event, or the challenge of a registration. */
export type Delivery =
  | { readonly type: "event"; readonly event: EventObject }
  | { readonly type: "batch"; readonly events: readonly EventObject[] }
  | { readonly type: "challenge"; readonly challenge: string }
  | { readonly type: "test" };

/** Null for what is no delivery of the service. */
export function readDelivery(body: Uint8Array): Delivery | null {
  const value = readObject(body);
  if (!value) return null;
  if ("events" in value) {
    const events = value.events;
    const isBatch = Array.isArray(events) && events.every((one) => typeof one === "object" && one);
    return isBatch ? { type: "batch", events: events as EventObject[] } : null;
  }
  switch (value.event) {
    case "webhook.verify":
      return { type: "challenge", challenge: String(value.data?.["challenge"]) };
    case "webhook.test":
      return { type: "test" };
    default:
      return { type: "event", event: value };
  }
}

function readObject(body: Uint8Array): EventObject | null {
  try {
    const value = JSON.parse(new TextDecoder().decode(body)) as EventObject | null;
    return typeof value === "object" ? value : null;
  } catch {
    return null;
  }
}

interface NodeRequest extends AsyncIterable<Uint8Array> {
  readonly url?: string | undefined;
  readonly method?: string | undefined;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
}

interface NodeResponse {
  statusCode: number;
  setHeader(name: string, value: string): unknown;
  end(body?: string): unknown;
}

/** Adapts a handler to `node:http` and to the frameworks on top of it. It never rejects. */
export function toNode(
  handler: WebhookHandler,
): (request: NodeRequest, response: NodeResponse) => Promise<void> {
  return async (request, response) => {
    try {
      await write(response, await answerTo(handler, request));
    } catch {
      // The connection is gone, or somebody else has answered.
    }
  };
}

async function answerTo(handler: WebhookHandler, request: NodeRequest): Promise<Response> {
  let asked: Request | null;
  try {
    asked = await fetchRequest(request);
  } catch {
    // A body that was cut off, or a method or target that no request has.
    return new Response("no delivery", { status: 400, headers: CLOSING });
  }
  if (!asked) return tooLarge();
  try {
    return await handler(asked);
  } catch {
    return new Response("the handler has failed", { status: 500 });
  }
}

/** The request as Fetch has it; null if its body is too large. */
async function fetchRequest(request: NodeRequest): Promise<Request | null> {
  const headers = new Headers();
  for (const [name, value] of Object.entries(request.headers)) {
    if (value !== undefined) headers.set(name, String(value));
  }
  const method = request.method ?? "POST";
  const init = { method, headers };
  const url = `http://webhook.invalid${request.url ?? "/"}`;
  // A call that is no request is refused before its body is read.
  const bare = new Request(url, init);
  const body = await readAtMost(MAX_DELIVERY_BYTES, headers, request[Symbol.asyncIterator]());
  if (!body || method === "GET" || method === "HEAD") return body && bare;
  return new Request(url, { ...init, body });
}

async function write(response: NodeResponse, answer: Response): Promise<void> {
  response.statusCode = answer.status;
  answer.headers.forEach((value, name) => response.setHeader(name, value));
  response.end(await answer.text());
}

/** Nothing more is read of a connection whose request was not read to its end. */
const CLOSING = { connection: "close" };

function tooLarge(): Response {
  return new Response("too large", { status: 413, headers: CLOSING });
}

/** All bytes of a body; null if they are more. An iterator that is left stays open. */
async function readAtMost(
  maxBytes: number,
  headers: Headers,
  parts: AsyncIterator<Uint8Array>,
): Promise<Bytes | null> {
  if (Number(headers.get("content-length") ?? 0) > maxBytes) return null;
  const read: Uint8Array[] = [];
  let bytes = 0;
  for (let next = await parts.next(); !next.done; next = await parts.next()) {
    bytes += next.value.length;
    if (bytes > maxBytes) return null;
    read.push(next.value);
  }
  return concat(...read);
}

/** The body of a delivery, or the answer to something that is none. */
export async function deliveredBytes(request: Request): Promise<Bytes | Response> {
  try {
    const reader = request.body?.getReader();
    const next = async (): Promise<IteratorResult<Uint8Array, undefined>> => {
      const { done, value } = (await reader?.read()) ?? { done: true, value: undefined };
      return done ? { done, value: undefined } : { done: false, value };
    };
    const body = await readAtMost(MAX_DELIVERY_BYTES, request.headers, { next });
    if (body) return body;
    await reader?.cancel().catch(() => {});
    return tooLarge();
  } catch {
    return new Response("no delivery", { status: 400 });
  }
}

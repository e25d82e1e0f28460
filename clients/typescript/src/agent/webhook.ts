/** Deliveries of a webhook: genuine ones become events. */
import { fromBase64, utf8, concat, type Bytes } from "../e2ee/bytes.js";
import type { EventObject } from "../core/types.js";

const TOLERANCE_SECONDS = 300;

/** Any Fetch-shaped framework takes this as it is. */
export type WebhookHandler = (request: Request) => Promise<Response>;

/** A webhook's secret; the new and the old one while it is rotated. */
export type WebhookSecrets = string | readonly string[];

/** Whether a delivery is genuine, over its bytes as they came and in constant time. */
export async function verifyDelivery(
  secrets: WebhookSecrets,
  headers: Headers,
  body: Uint8Array,
  nowSeconds: number = Date.now() / 1000,
): Promise<boolean> {
  const id = headers.get("webhook-id") ?? "";
  const timestamp = headers.get("webhook-timestamp") ?? "";
  if (!/^[0-9]{1,12}$/.test(timestamp)) return false;
  if (Math.abs(nowSeconds - Number(timestamp)) > TOLERANCE_SECONDS) return false;
  const text = concat(utf8(`${id}.${timestamp}.`), body);
  const keys = (typeof secrets === "string" ? [secrets] : secrets).map(standardKey);
  let genuine = false;
  for (const signature of (headers.get("webhook-signature") ?? "").split(" ")) {
    if (!signature.startsWith("v1,")) continue;
    for (const key of keys) genuine = (await matches(key, signature.slice(3), text)) || genuine;
  }
  return genuine;
}

/** The bytes behind `whsec_`, or the characters of a secret without that prefix. */
function standardKey(secret: string): Bytes {
  return secret.startsWith("whsec_") ? fromBase64(secret.slice(6)) : utf8(secret);
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
  | { readonly type: "challenge"; readonly challenge: string }
  | { readonly type: "test" };

export function readDelivery(body: Uint8Array): Delivery {
  const value = JSON.parse(new TextDecoder().decode(body)) as EventObject;
  switch (value.event) {
    case "webhook.verify":
      return { type: "challenge", challenge: String(value.data["challenge"]) };
    case "webhook.test":
      return { type: "test" };
    default:
      return { type: "event", event: value };
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

/** Adapts a handler to `node:http` and to the frameworks on top of it. */
export function toNode(
  handler: WebhookHandler,
): (request: NodeRequest, response: NodeResponse) => Promise<void> {
  return async (request, response) => {
    const parts: Uint8Array[] = [];
    for await (const part of request) parts.push(part);
    const headers = new Headers();
    for (const [name, value] of Object.entries(request.headers)) {
      if (value !== undefined) headers.set(name, String(value));
    }
    const url = `http://webhook.invalid${request.url ?? "/"}`;
    const method = request.method ?? "POST";
    const body = method === "GET" || method === "HEAD" ? null : concat(...parts);
    const answer = await handler(new Request(url, { method, headers, body }));
    response.statusCode = answer.status;
    answer.headers.forEach((value, name) => response.setHeader(name, value));
    response.end(await answer.text());
  };
}

// Helpers of the tests of vectors.
import { readFileSync } from "node:fs";
import * as e2ee from "@blindpipe/client/e2ee";

const FOLDER =
  process.env["BLINDPIPE_VECTORS"] ?? new URL("../../../vectors/", import.meta.url).pathname;
const bytes = e2ee.fromHex;

// Vectors are JSON of many shapes, which their README tells.
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type Vector = any;

export function read(name: string): Vector {
  return JSON.parse(readFileSync(`${FOLDER}/${name}.json`, "utf8"));
}

export function principal(text: string): e2ee.Principal {
  return { type: text.startsWith("01") ? "user" : "agent", id: text.slice(2) };
}

export function pair(keys: Vector): Promise<e2ee.KeyPair> {
  return e2ee.importKeys({
    exchange: bytes(keys.x25519_private),
    signingSeed: bytes(keys.ed25519_seed),
  });
}

export function halves(keys: Vector): e2ee.PublicKeys {
  return { publicKey: bytes(keys.public_key), signingPublicKey: bytes(keys.signing_public_key) };
}

export async function reasonOf(run: () => unknown): Promise<string> {
  try {
    await run();
  } catch (error) {
    if (error instanceof e2ee.DecryptError) return error.reason;
    throw error;
  }
  return "opened";
}

export function placeOf(place: Vector): e2ee.Place {
  switch (place.kind) {
    case 1:
      return { kind: 1, clientMessageId: place.client_message_id, inReplyTo: place.in_reply_to };
    case 2:
      return { kind: 2, streamId: place.stream_id, n: place.n };
    case 3:
      return {
        kind: 3,
        userId: place.asked,
        requestId: place.request_id,
        tool: place.tool,
        scope: place.scope,
        deviceId: place.device_id,
      };
    default:
      return {
        kind: 4,
        digest: bytes(place.digest),
        requestId: place.request_id,
        status: place.status,
        reason: place.reason,
      };
  }
}

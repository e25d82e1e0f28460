// Verifies a delivery with the modules of Node.js.

import { createHmac, timingSafeEqual } from "node:crypto";

const TOLERANCE_SECONDS = 300;

/**
 * Returns the delivery id, or null if the delivery is not genuine.
 *
 * secret: the webhook's secret as text, with its prefix.
 * headers: as in `IncomingMessage.headers`, with lower-case names.
 * body: the request's bytes as received, before any parsing.
 */
export function verify(
  secret: string,
  headers: Record<string, string | string[] | undefined>,
  body: Uint8Array,
  now: number = Date.now() / 1000,
): string | null {
  const header = (name: string): string => String(headers[name] ?? "");
  const timestamp = header("x-service-timestamp");
  const deliveryId = header("x-service-delivery-id");
  if (!/^[0-9]{1,12}$/.test(timestamp)) return null;
  if (Math.abs(now - Number(timestamp)) > TOLERANCE_SECONDS) return null;
  const expected = createHmac("sha256", secret)
    .update(`${timestamp}.${deliveryId}.`)
    .update(body)
    .digest("hex");
  const matches = (signature: string): boolean => {
    const [left, right] = [Buffer.from(signature), Buffer.from(expected)];
    return left.length === right.length && timingSafeEqual(left, right);
  };
  // After a rotation the second header carries the signature with the secret before it.
  const names = ["x-service-signature", "x-service-signature-previous"];
  return names.map((name) => matches(header(name))).includes(true) ? deliveryId : null;
}

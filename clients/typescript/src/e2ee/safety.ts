/** Safety numbers: what two people compare, of all keys of both. */
import { compare, concat, label } from "./bytes.js";
import { type Principal, type PublicKeys, principalBytes } from "./keys.js";
import { sha512 } from "./primitives.js";

/** One side of a safety number. */
export interface SafetySide {
  readonly principal: Principal;
  readonly keys: readonly PublicKeys[];
}

/** The 30 digits of a side, in six groups. The order of the keys does not matter. */
export async function safetyDigits({ principal, keys }: SafetySide): Promise<string> {
  const pairs = keys
    .map(({ publicKey, signingPublicKey }) => concat(publicKey, signingPublicKey))
    .sort(compare)
    .filter((pair, i, all) => i === 0 || compare(pair, all[i - 1]!) !== 0);
  const hash = await sha512(concat(label("safety"), principalBytes(principal), ...pairs));
  const groups = [];
  for (let i = 0; i < 6; i++) {
    let number = 0;
    for (const byte of hash.subarray(5 * i, 5 * i + 5)) number = number * 256 + byte;
    groups.push(String(number % 100_000).padStart(5, "0"));
  }
  return groups.join(" ");
}

/** 60 digits of two sides, the same on both. */
export async function safetyNumber(one: SafetySide, other: SafetySide): Promise<string> {
  const a = await safetyDigits(one);
  const b = await safetyDigits(other);
  return a < b ? `${a} ${b}` : `${b} ${a}`;
}

/** Safety numbers: what two people compare. */
import { concat, label } from "./bytes.js";
import { type Principal, type PublicKeys, principalBytes } from "./keys.js";
import { sha512 } from "./primitives.js";

/** The 30 digits of a side, in six groups. */
export async function safetyDigits(principal: Principal, keys: PublicKeys): Promise<string> {
  const text = [label("safety"), principalBytes(principal), keys.publicKey, keys.signingPublicKey];
  const hash = await sha512(concat(...text));
  const groups = [];
  for (let i = 0; i < 6; i++) {
    let number = 0;
    for (const byte of hash.subarray(5 * i, 5 * i + 5)) number = number * 256 + byte;
    groups.push(String(number % 100_000).padStart(5, "0"));
  }
  return groups.join(" ");
}

/** 60 digits of two keys, the same on both sides. */
export async function safetyNumber(
  one: { principal: Principal; keys: PublicKeys },
  other: { principal: Principal; keys: PublicKeys },
): Promise<string> {
  const a = await safetyDigits(one.principal, one.keys);
  const b = await safetyDigits(other.principal, other.keys);
  return a < b ? `${a} ${b}` : `${b} ${a}`;
}

/**
 * Node's own library. It gives the bytes of WebCrypto at once, where WebCrypto hands every call to
 * a thread: for a message of a few hundred bytes that is most of the time.
 */
import type { KeyObject } from "node:crypto";
import type { NativeKey } from "./bytes.js";

type NodeCrypto = typeof import("node:crypto");

/** Undefined in browsers. No import names the module, so bundlers do not look for it. */
export const native: NodeCrypto | undefined = find();

function find(): NodeCrypto | undefined {
  if (typeof process === "undefined" || "Deno" in globalThis || "Bun" in globalThis)
    return undefined;
  return process.getBuiltinModule?.("node:crypto");
}

const keys = new WeakMap<NativeKey, KeyObject>();

/** Gives a key to Node's library; its bytes stay where they are. */
export function nativeKey(library: NodeCrypto, key: NativeKey): KeyObject {
  let found = keys.get(key);
  if (!found) keys.set(key, (found = library.KeyObject.from(key)));
  return found;
}

/** Values by name. The one that was used longest ago goes first. */
export class Recent<T> {
  readonly #values = new Map<string, T>();

  constructor(private readonly max: number) {}

  get(name: string): T | undefined {
    const value = this.#values.get(name);
    if (value === undefined) return undefined;
    this.#values.delete(name);
    this.#values.set(name, value);
    return value;
  }

  set(name: string, value: T): void {
    this.#values.set(name, value);
    if (this.#values.size > this.max) this.#values.delete(this.#values.keys().next().value!);
  }
}

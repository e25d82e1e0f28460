/** What a page reads when it opens, and again after a change. */
import { type Signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { type Action, useAction } from "../../parts/action.js";

export interface Loaded<T> {
  /** Null until it was read. */
  readonly value: Signal<T | null>;
  readonly action: Action;
  readonly load: () => Promise<void>;
}

export function useLoaded<T>(read: () => Promise<T>): Loaded<T> {
  const action = useAction();
  const value = useSignal<T | null>(null);
  const load = async (): Promise<void> => {
    value.value = await read();
  };
  useEffect(() => void action.run(load), []);
  return { value, action, load };
}

export async function all<T>(pages: AsyncIterable<T>): Promise<readonly T[]> {
  const found: T[] = [];
  for await (const one of pages) found.push(one);
  return found;
}

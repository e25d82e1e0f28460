// A process of an agent that has several. It tells its parent what it handles, and answers each
// message. Its parent keeps the store of all.
import { setTimeout as pause } from "node:timers/promises";
import {
  Agent,
  type Handled,
  type News,
  type SharedStore,
  StoreChanged,
  type StoredTrust,
} from "@blindpipe/client/agent";

/** The calls of a store, as they travel. */
export type StoreCall =
  | { readonly name: "load" | "loadHandled" }
  | { readonly name: "save"; readonly trust: StoredTrust }
  | { readonly name: "addHandled"; readonly handled: readonly Handled[] }
  | { readonly name: "news"; readonly conversationId: string | null };

export type FromChild =
  | { readonly type: "call"; readonly ref: number; readonly call: StoreCall }
  | { readonly type: "begins" | "ends"; readonly conversation: string; readonly text: string };

export interface ToChild {
  readonly ref: number;
  readonly answer: unknown;
  /** Another process has saved one of the entries. */
  readonly isChanged: boolean;
}

const waiting = new Map<number, (told: ToChild) => void>();

function tell(message: FromChild): void {
  process.send!(message);
}

async function ask<T>(call: StoreCall): Promise<T> {
  const ref = waiting.size === 0 ? 1 : Math.max(...waiting.keys()) + 1;
  const told = await new Promise<ToChild>((resolve) => {
    waiting.set(ref, resolve);
    tell({ type: "call", ref, call });
  });
  waiting.delete(ref);
  if (told.isChanged) throw new StoreChanged();
  return told.answer as T;
}

const store: SharedStore = {
  load: () => ask({ name: "load" }),
  save: (trust) => ask({ name: "save", trust }),
  loadHandled: () => ask({ name: "loadHandled" }),
  addHandled: (handled) => ask({ name: "addHandled", handled }),
  news: (conversationId) => ask<News>({ name: "news", conversationId }),
};

if (process.send) {
  process.on("message", (told: ToChild) => waiting.get(told.ref)?.(told));
  const agent = Agent.fromEnv({ pins: store });
  agent.on("message", async (context) => {
    const { conversation, text } = context;
    tell({ type: "begins", conversation, text });
    await pause(50);
    await context.reply(`${text}, by ${process.pid}`);
    tell({ type: "ends", conversation, text });
  });
  await agent.run({ shared: true });
  process.disconnect();
}

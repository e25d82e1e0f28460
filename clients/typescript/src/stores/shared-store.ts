/** The store that several processes of an agent share. */
import type { Handled } from "../core/session.js";
import type { EpochMarks } from "../e2ee/room.js";
import type { StoredPrincipal } from "../e2ee/trust.js";
import { type HandledStore, type LessonStore, keepsHandled } from "./pin-store.js";

/** Entries that other processes have saved since the last news. */
export interface News {
  readonly pins: Readonly<Record<string, StoredPrincipal>>;
  readonly marks: Readonly<Record<string, EpochMarks>>;
  readonly handled: readonly Handled[];
  /** Another process had the conversation since this one had it last. */
  readonly cameBack: boolean;
}

/** Another process has saved one of the entries since the last news. Nothing was saved. */
export class StoreChanged extends Error {
  override readonly name = "StoreChanged";
  constructor() {
    super("another process has saved one of these entries");
  }
}

/**
 * A store for several processes of an agent, such as tables of a database. Each process has an
 * object of its own. `save` rejects with `StoreChanged` if another process has saved one of these
 * entries since the last `news`, or since `load`.
 */
export interface SharedStore extends HandledStore {
  /**
   * Reads the news, in one step with noting that this process has the conversation. Without
   * a conversation nothing is noted, and `cameBack` is false.
   */
  news(conversationId: string | null): Promise<News>;
}

export function isShared(store: LessonStore | string | null | undefined): store is SharedStore {
  return typeof store === "object" && keepsHandled(store) && "news" in store;
}

/** The lessons of events: keys of others, epochs and times, kept where the developer said. */
import type { Handled, Session } from "../core/session.js";
import type { Trust } from "../e2ee/trust.js";
import { errorName } from "../errors.js";
import type { HookCaller, Logger } from "../hooks.js";
import { type LessonStore, keepsHandled } from "./pin-store.js";
import { StoreChanged, isShared } from "./shared-store.js";

/** The wait before a store that has failed is tried again. */
export const KEEP_RETRY_MS = 5_000;
/** Many things are learned together, such as the keys of a group. */
const SAVE_DELAY_MS = 500;

/** Keeps pins and marks where the developer said, one save after the other. */
export class Lessons {
  #held: { readonly pins: Trust; readonly session: Session } | null = null;
  #last: Promise<boolean> = Promise.resolve(true);
  #timer: ReturnType<typeof setTimeout> | null = null;
  #hasChanged = false;
  /** Messages that were handled, and that the store does not keep yet. */
  #handled: Handled[] = [];

  constructor(
    private readonly store: LessonStore | null,
    private readonly hooks: HookCaller,
    private readonly logger: Logger,
  ) {}

  hold(pins: Trust, session: Session): void {
    this.#held = { pins, session };
  }

  soon(): void {
    this.#hasChanged = true;
    if (this.store) this.#timer ??= setTimeout(() => void this.save(), SAVE_DELAY_MS);
  }

  /** A message was handled. It is kept before it is acknowledged. */
  handled(handled: Handled): void {
    if (keepsHandled(this.store)) this.#handled.push(handled);
  }

  /** Many may wait for one save: it keeps what all of them have learned. */
  save(): Promise<boolean> {
    if (this.#timer) clearTimeout(this.#timer);
    this.#timer = null;
    this.#last = this.#last.then(async () => {
      const isHandledKept = await this.#writeHandled();
      return (await this.#write()) && isHandledKept;
    });
    return this.#last;
  }

  /** Takes over what other processes have stored; false if it could not be read. */
  enter(conversationId: string | null): Promise<boolean> {
    if (!isShared(this.store)) return Promise.resolve(true);
    const entered = this.#last.then(() => this.#takeNews(conversationId));
    this.#last = entered.then(() => true);
    return entered;
  }

  async #takeNews(conversationId: string | null): Promise<boolean> {
    if (!isShared(this.store) || !this.#held) return true;
    const { pins, session } = this.#held;
    try {
      const news = await this.store.news(conversationId);
      const changed = pins.takeOver(news.pins);
      session.takeOver(news.marks, news.handled);
      for (const who of changed) session.reconsider(who);
      // Members and keys may have changed while another process had it.
      if (news.cameBack && conversationId !== null) session.forget(conversationId);
      return true;
    } catch (error) {
      return this.#failed("the shared store could not be read", error);
    }
  }

  async #writeHandled(): Promise<boolean> {
    const adding = this.#handled;
    if (adding.length === 0 || !keepsHandled(this.store)) return true;
    this.#handled = [];
    try {
      await this.store.addHandled(adding);
      return true;
    } catch (error) {
      this.#handled = [...adding, ...this.#handled];
      return this.#failed("the handled messages could not be stored", error);
    }
  }

  async #write(): Promise<boolean> {
    if (!this.store || !this.#held || !this.#hasChanged) return true;
    if (!(await this.#takeNews(null))) return false;
    const { pins, session } = this.#held;
    const [trust, rooms] = [pins.takeChanged(), session.takeChanged()];
    this.#hasChanged = false;
    if (trust.names.size === 0 && rooms.names.size === 0) return true;
    try {
      await this.store.save({ pins: trust.pins, marks: rooms.marks });
      return true;
    } catch (error) {
      this.#hasChanged = true;
      pins.notKept(trust.names);
      session.notKept(rooms.names);
      if (error instanceof StoreChanged) return this.#write();
      return this.#failed("the pins could not be stored", error);
    }
  }

  /** Stores' own words may quote what they were given. */
  #failed(text: string, error: unknown): false {
    this.logger.error(text, { name: errorName(error) });
    this.hooks.call("store_failed");
    return false;
  }
}

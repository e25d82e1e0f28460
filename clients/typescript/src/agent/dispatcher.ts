/** Events in order: one of a conversation at a time, several conversations at once. */
import { idName, isId } from "../e2ee/bytes.js";
import type { EventObject } from "../core/types.js";

export interface DispatcherOptions {
  /** Conversations that are handled at once. */
  readonly concurrency: number;
  /** Resolves once the event counts as handled; rejects if it never will here. */
  readonly handle: (event: EventObject) => Promise<void>;
  /** The highest cursor below which every event has been handled. */
  readonly onProgress: (cursor: string) => void;
}

interface Slot {
  readonly cursor: string;
  isDone: boolean;
  /** It comes again, here or elsewhere. */
  isGivenUp: boolean;
}

export class Dispatcher {
  /** Events of a conversation that wait; those without one form a line of their own. */
  readonly #lines = new Map<string, EventObject[]>();
  readonly #busy = new Set<string>();
  /** Lines with something to do and nobody on it, in the order of their events. */
  readonly #ready = new Set<string>();
  readonly #slots: Slot[] = [];
  #isStopped = false;
  #onIdle: (() => void)[] = [];

  constructor(private readonly options: DispatcherOptions) {}

  /** Events that were pushed and are not handled. */
  get pending(): number {
    return this.#slots.length;
  }

  /** `after`: something that the event waits for. It holds up acknowledgements, and no other event. */
  push(event: EventObject, after: Promise<void> | null = null): void {
    const slot: Slot = { cursor: event.cursor, isDone: false, isGivenUp: false };
    this.#slots.push(slot);
    this.#slotOf.set(event, slot);
    if (!after) return this.#enqueue(event);
    void after.then(() => {
      if (!slot.isGivenUp) this.#enqueue(event);
    });
  }

  #enqueue(event: EventObject): void {
    const name = lineOf(event);
    const line = this.#lines.get(name);
    if (line) line.push(event);
    else this.#lines.set(name, [event]);
    if (!this.#busy.has(name)) this.#ready.add(name);
    this.#fill();
  }

  readonly #slotOf = new WeakMap<EventObject, Slot>();

  /** An event that needs no handler. */
  skip(event: EventObject): void {
    this.#slots.push({ cursor: event.cursor, isDone: true, isGivenUp: false });
    this.#advance();
  }

  #fill(): void {
    for (const name of this.#ready) {
      if (this.#isStopped || this.#busy.size >= this.options.concurrency) return;
      this.#ready.delete(name);
      this.#busy.add(name);
      void this.#work(name);
    }
  }

  async #work(name: string): Promise<void> {
    const line = this.#lines.get(name)!;
    while (line.length > 0 && !this.#isStopped) {
      const event = line[0]!;
      const isHandled = await this.options.handle(event).then(
        () => true,
        () => false,
      );
      line.shift();
      const slot = this.#slotOf.get(event)!;
      if (!isHandled && slot.isGivenUp) continue;
      if (!isHandled) break;
      slot.isDone = true;
      this.#advance();
    }
    if (line.length === 0) this.#lines.delete(name);
    this.#busy.delete(name);
    this.#fill();
    this.#tellIdle();
  }

  #advance(): void {
    let cursor: string | null = null;
    let done = 0;
    while (this.#slots[done]?.isDone) cursor = this.#slots[done++]!.cursor;
    if (cursor === null) return;
    this.#slots.splice(0, done);
    this.options.onProgress(cursor);
    this.#tellIdle();
  }

  #tellIdle(): void {
    const isIdle = this.#busy.size === 0 && (this.#isStopped || this.#slots.length === 0);
    if (!isIdle) return;
    this.#onIdle.splice(0).forEach((tell) => tell());
  }

  /** Resolves when nothing is under way, and nothing waits unless this was stopped. */
  idle(): Promise<void> {
    return new Promise((resolve) => {
      this.#onIdle.push(resolve);
      this.#tellIdle();
    });
  }

  /** Forgets what waits, and tells no progress of what runs. */
  giveUp(): void {
    for (const name of this.#ready) this.#lines.delete(name);
    this.#ready.clear();
    for (const slot of this.#slots.splice(0)) slot.isGivenUp = true;
    for (const line of this.#lines.values()) {
      for (const event of line.splice(1)) this.#slotOf.delete(event);
    }
  }

  /** Begins no further event. */
  stop(): void {
    this.#isStopped = true;
    this.#tellIdle();
  }
}

/** An id has several spellings, and a conversation one line. */
function lineOf({ conversation_id: id }: EventObject): string {
  if (id === undefined) return "";
  return isId(id) ? idName(id) : id;
}

/** A conversation that was opened on this page: its messages, and what is being written. */
import { batch, signal } from "@preact/signals";
import {
  type ClientEvent,
  type Conversation,
  type HistoryPage,
  type ReceivedMessage,
  type TimelineItem,
  timeline,
} from "@blindpipe/client";
import * as cache from "./cache.js";
import { bounded, keep, type KeptPage, restore } from "./kept.js";
import { arrived } from "./outbox.js";

const MARK_PAUSE_MS = 1_000;
/** The most that the service gives at once. */
const PAGE_MESSAGES = 100;

/** What an agent is writing now. */
export interface Live {
  readonly streamId: string;
  readonly sender: { readonly type: string; readonly id: string };
  readonly text: string;
  /** What it does meanwhile, such as a search. */
  readonly status: string | null;
  /** A piece was lost on the way, so that the text has a hole. */
  readonly hasHole: boolean;
}

export class Chat {
  readonly items = signal<readonly TimelineItem[]>([]);
  readonly live = signal<readonly Live[]>([]);
  readonly typing = signal<readonly string[]>([]);
  readonly hasMore = signal(true);
  /** The service has answered: until then the messages of the cache are shown. */
  isRead = false;
  readonly #messages = new Map<number, ReceivedMessage>();
  readonly #refs = new Map<number, ReceivedMessage>();
  /** The `seq` of the messages that are there by the cache alone. */
  readonly #cached = new Set<number>();
  /** The streams whose message is known. A late piece of such a stream shows nothing. */
  readonly #ended = new Set<string>();
  #pages: AsyncGenerator<HistoryPage> | null = null;
  #reading: Promise<void> | null = null;
  /** The newest message that the person has seen and the service was not told of. */
  #seen: ReceivedMessage | null = null;
  #isMarking = false;
  readonly #typingEnds = new Map<string, ReturnType<typeof setTimeout>>();

  constructor(readonly conversation: Conversation) {}

  /** Shows what the cache has, unless the service was faster. */
  async restore(): Promise<void> {
    const kept = await cache.readChat<KeptPage>(this.conversation.id);
    if (!kept || this.isRead) return;
    for (const received of kept.messages.map(restore)) {
      const { seq } = received.message;
      if (this.#messages.has(seq)) continue;
      this.#messages.set(seq, received);
      this.#cached.add(seq);
    }
    for (const received of kept.refs.map(restore)) this.#refs.set(received.message.seq, received);
    this.#show();
  }

  /** Has the cache keep the newest messages. */
  save(): void {
    if (!this.isRead) return;
    cache.writeChat<KeptPage>(this.conversation.id, () =>
      bounded([...this.#messages.values()].map(keep), [...this.#refs.values()].map(keep)),
    );
  }

  /** Reads the next older page. */
  older(): Promise<void> {
    return (this.#reading ??= this.#older().finally(() => (this.#reading = null)));
  }

  async #older(): Promise<void> {
    const before = this.#messages.size - this.#cached.size;
    do {
      this.#pages ??= this.conversation.pages({ limit: PAGE_MESSAGES });
      try {
        const { value, done } = await this.#pages.next();
        if (done) {
          this.#answered();
          this.hasMore.value = false;
          break;
        }
        this.#keep(value);
        this.hasMore.value = value.messages.length === PAGE_MESSAGES;
      } catch (error) {
        // Pages that have failed do not go on; the next try begins with the newest, and skips what is there.
        this.#pages = null;
        throw error;
      }
    } while (this.#messages.size === before && this.hasMore.value);
    this.#show();
  }

  /** Reads what came while this page was not told of it. */
  async catchUp(): Promise<void> {
    if (!this.isRead) return this.older();
    this.#pages = null;
    const pages = this.conversation.pages({ limit: PAGE_MESSAGES });
    for await (const page of pages) {
      const isKnown = page.messages.some(({ message }) => this.#messages.has(message.seq));
      this.#keep(page);
      if (isKnown) break;
    }
    this.#show();
  }

  #keep({ messages, refs }: HistoryPage): void {
    this.#answered();
    for (const received of messages) {
      this.#messages.set(received.message.seq, received);
      this.#end(received);
      arrived(received.message);
    }
    for (const received of refs) this.#refs.set(received.message.seq, received);
  }

  /** The service's word stands for that of the cache. */
  #answered(): void {
    if (this.isRead) return;
    this.isRead = true;
    for (const seq of this.#cached) this.#messages.delete(seq);
    this.#cached.clear();
    this.#refs.clear();
  }

  take(received: ReceivedMessage): void {
    const { seq } = received.message;
    const newest = this.items.value.at(-1)?.received.message.seq ?? 0;
    this.#messages.set(seq, received);
    this.#cached.delete(seq);
    batch(() => {
      this.#end(received);
      const [added] = timeline([received]);
      // A change of another message makes no item of its own, and needs all of them.
      if (added && seq > newest) this.items.value = [...this.items.value, added];
      else this.#show();
      arrived(received.message);
    });
    this.save();
  }

  takeLive(event: Extract<ClientEvent, { type: "delta" | "checkpoint" | "status" }>): void {
    const { streamId, sender } = event;
    // After a lost line, the message can come before the rest of its stream.
    if (this.#ended.has(streamId)) return;
    const before = this.live.value.find((live) => live.streamId === streamId);
    const kept = { text: before?.text ?? "", hasHole: before?.hasHole ?? false, status: null };
    const next: Live = { streamId, sender, ...kept, ...changeOf(event, before) };
    this.live.value = [...this.live.value.filter((live) => live !== before), next];
  }

  /** A message ends its stream, from wherever it comes. */
  #end({ message: { client_message_id: id, sender } }: ReceivedMessage): void {
    if (!id || sender.type !== "agent") return;
    this.#ended.add(id);
    if (this.live.value.some((live) => live.streamId === id)) this.endLive(id);
  }

  endLive(streamId: string): void {
    this.live.value = this.live.value.filter((live) => live.streamId !== streamId);
  }

  /** Tells the service what the person has seen. An answer may come in many messages, so it is told once a second. */
  async markRead(newest: ReceivedMessage): Promise<void> {
    this.#seen = newest;
    if (this.#isMarking) return;
    this.#isMarking = true;
    while (this.#seen) {
      const seen = this.#seen;
      this.#seen = null;
      // The next message marks this one as well.
      await this.conversation.markRead(seen).catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, MARK_PAUSE_MS));
    }
    this.#isMarking = false;
  }

  /** Asks for what agents have written so far and go on writing. */
  async join(): Promise<void> {
    // Without an answer, they are seen with their next piece.
    await this.conversation.streams().catch(() => []);
  }

  takeTyping(id: string, state: string): void {
    clearTimeout(this.#typingEnds.get(id));
    const others = this.typing.value.filter((one) => one !== id);
    this.typing.value = state === "started" ? [...others, id] : others;
    if (state === "started") this.#typingEnds.set(id, setTimeout(() => this.takeTyping(id, "stopped"), 8_000));
  }

  /** The payload of a message is gone. */
  forget(messageId: string): void {
    for (const [seq, received] of this.#messages) {
      if (received.message.message_id !== messageId) continue;
      const message = { ...received.message, payload: null as never };
      this.#messages.set(seq, { ...received, message, opened: null, fault: null });
    }
    this.#show();
  }

  #show(): void {
    this.items.value = timeline(this.#messages.values(), this.#refs.values());
    this.save();
  }
}

function changeOf(
  event: Extract<ClientEvent, { type: "delta" | "checkpoint" | "status" }>,
  before: Live | undefined,
): Partial<Live> {
  switch (event.type) {
    case "delta":
      return { text: (before?.text ?? "") + event.append, hasHole: before?.text ? before.hasHole : event.n > 0 };
    case "checkpoint":
      return { text: event.text, hasHole: false };
    case "status":
      return { status: event.text };
  }
}

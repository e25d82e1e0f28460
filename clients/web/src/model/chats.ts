/** Conversations and their messages, as events and histories bring them. Nothing of it outlives the page. */
import { batch, signal } from "@preact/signals";
import {
  BlindpipeError,
  Closed,
  type ClientEvent,
  type Client,
  type Conversation,
  type HistoryPage,
  type ReceivedMessage,
  type TimelineItem,
  ToolRequest,
  timeline,
} from "@blindpipe/client";
import * as line from "./line.js";
import { arrived, clearOutbox } from "./outbox.js";
import { dismiss, refreshApprovals, refreshGrants, show } from "./requests.js";

type ConversationInfo = Awaited<ReturnType<Conversation["info"]>>;

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

export interface Notice {
  readonly type: string;
  readonly principal_id: string | null;
  readonly conversation_id: string | null;
}

/** Latest activity first. */
export const conversations = signal<readonly ConversationInfo[]>([]);
export const notices = signal<readonly Notice[]>([]);

/** A conversation that was opened on this page. */
export class Chat {
  readonly items = signal<readonly TimelineItem[]>([]);
  readonly live = signal<readonly Live[]>([]);
  readonly typing = signal<readonly string[]>([]);
  readonly hasMore = signal(true);
  readonly #messages = new Map<number, ReceivedMessage>();
  readonly #refs = new Map<number, ReceivedMessage>();
  #pages: AsyncGenerator<HistoryPage> | null = null;
  #reading: Promise<void> | null = null;
  readonly #typingEnds = new Map<string, ReturnType<typeof setTimeout>>();

  constructor(readonly conversation: Conversation) {}

  /** Reads the next older page. */
  older(): Promise<void> {
    return (this.#reading ??= this.#older().finally(() => (this.#reading = null)));
  }

  async #older(): Promise<void> {
    const before = this.#messages.size;
    do {
      this.#pages ??= this.conversation.pages({ limit: PAGE_MESSAGES });
      try {
        const { value, done } = await this.#pages.next();
        if (done) {
          this.hasMore.value = false;
          return;
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
    for (const received of messages) {
      this.#messages.set(received.message.seq, received);
      arrived(received.message);
    }
    for (const received of refs) this.#refs.set(received.message.seq, received);
  }

  take(received: ReceivedMessage): void {
    const { seq, client_message_id: ended } = received.message;
    const newest = this.items.value.at(-1)?.received.message.seq ?? 0;
    this.#messages.set(seq, received);
    batch(() => {
      this.live.value = this.live.value.filter((live) => live.streamId !== ended);
      const [added] = timeline([received]);
      // A change of another message makes no item of its own, and needs all of them.
      if (added && seq > newest) this.items.value = [...this.items.value, added];
      else this.#show();
      arrived(received.message);
    });
  }

  takeLive(event: Extract<ClientEvent, { type: "delta" | "checkpoint" | "status" }>): void {
    const { streamId, sender } = event;
    const before = this.live.value.find((live) => live.streamId === streamId);
    const kept = { text: before?.text ?? "", hasHole: before?.hasHole ?? false, status: null };
    const next: Live = { streamId, sender, ...kept, ...changeOf(event, before) };
    this.live.value = [...this.live.value.filter((live) => live !== before), next];
  }

  endLive(streamId: string): void {
    this.live.value = this.live.value.filter((live) => live.streamId !== streamId);
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

const MAX_LISTED = 200;
/** The most that the service gives at once. */
const PAGE_MESSAGES = 100;

const chats = new Map<string, Chat>();
const members = new Map<string, NonNullable<ConversationInfo["members"]>>();
let running: AbortController | null = null;
let current: Client | null = null;

export function chat(id: string): Chat {
  let found = chats.get(id);
  if (!found) {
    found = new Chat(current!.conversation(id));
    chats.set(id, found);
    read(found.older());
    void found.join();
  }
  return found;
}

/** A read that may fail while the line is away: the page asks again when it is back. */
function read(reading: Promise<void>): void {
  reading.catch((error: unknown) => {
    if (!(error instanceof BlindpipeError)) throw error;
  });
}

export function notice(of: Notice): void {
  notices.value = [of, ...notices.value].slice(0, 50);
}

/** Follows the person's events until the sign-out or the end of the session. */
export async function open(client: Client, onEnd: () => void): Promise<void> {
  close();
  current = client;
  const { signal } = (running = new AbortController());
  refreshAll();
  try {
    for await (const event of client.events({ signal })) take(event);
  } catch (error) {
    if (!(error instanceof Closed)) throw error;
    close();
    onEnd();
  }
}

function refreshAll(): void {
  if (!current) return;
  read(refreshConversations());
  read(refreshApprovals(current));
  read(refreshGrants(current));
}

/** The service keeps events for some days only, and what was missed before is in the histories. */
export function resync(): void {
  for (const open of chats.values()) read(open.catchUp());
  refreshAll();
}

export function close(): void {
  running?.abort();
  running = null;
  current = null;
  chats.clear();
  members.clear();
  clearOutbox();
  batch(() => {
    conversations.value = [];
    notices.value = [];
    line.lost();
  });
}

let refreshing: ReturnType<typeof setTimeout> | null = null;

/** Events come in bursts; the list is read once after them. */
function refreshSoon(): void {
  refreshing ??= setTimeout(() => {
    refreshing = null;
    if (current) read(refreshConversations());
  }, 300);
}

export async function refreshConversations(): Promise<void> {
  const reader = current!;
  const found: ConversationInfo[] = [];
  for await (const info of reader.conversations()) {
    found.push({ ...info, members: info.members ?? members.get(info.conversation_id) });
    if (found.length === MAX_LISTED) break;
  }
  conversations.value = found;
  await nameMembers(reader, found);
}

/** The list does not name the members, so each conversation is read once. */
async function nameMembers(reader: Client, listed: readonly ConversationInfo[]): Promise<void> {
  for (const { conversation_id: id } of listed.filter((info) => !info.members)) {
    const path = `/conversations/${id}`;
    const whole = await reader.account.http.data<ConversationInfo>({ method: "GET", path });
    if (reader !== current || !whole.members) return;
    members.set(id, whole.members);
    conversations.value = conversations.value.map((info) =>
      info.conversation_id === id ? { ...info, members: whole.members } : info,
    );
  }
}

function take(event: ClientEvent): void {
  switch (event.type) {
    case "message":
      chats.get(event.conversation.id)?.take(event);
      refreshSoon();
      break;
    case "delta":
    case "checkpoint":
    case "status":
      chat(event.conversationId).takeLive(event);
      break;
    case "stream_cancelled":
      chats.get(event.conversationId)?.endLive(event.streamId);
      break;
    case "typing":
      chats.get(event.conversationId)?.takeTyping(event.sender.id, event.state);
      break;
    case "tool_request":
      read(offer(event.request));
      break;
    case "caught_up":
      // Pages that failed while the line was away are read again.
      for (const open of chats.values()) {
        if (open.items.value.length === 0) read(open.older());
        void open.join();
      }
      if (conversations.value.length === 0) refreshAll();
      break;
    case "event":
      takeOther(event.event.event, event.event.data);
  }
}

/** A request that the device need not show is settled at once. */
async function offer(request: ToolRequest): Promise<void> {
  if ((await request.decide()) !== "ask") return;
  show(request);
}

function takeOther(name: string, data: Readonly<Record<string, unknown>>): void {
  if (name.startsWith("approval.") && current) read(refreshApprovals(current));
  if (name.startsWith("grant.") && current) read(refreshGrants(current));
  if (name === "message.deleted") {
    chats.get(String(data["conversation_id"]))?.forget(String(data["message_id"]));
  }
  if (name === "artifact_response") {
    dismiss(String(data["request_id"]));
  }
  if (/^(conversation|member|relation)\./.test(name)) members.delete(String(data["conversation_id"]));
  if (/^(conversation|member|relation|message)\./.test(name)) refreshSoon();
}

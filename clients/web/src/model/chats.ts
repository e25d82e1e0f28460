/**
 * The conversations, as events and histories bring them. Nothing of it outlives the page, unless the person has turned the
 * cache on.
 */
import { batch, signal } from "@preact/signals";
import {
  BlindpipeError,
  Closed,
  type ClientEvent,
  type Client,
  type Conversation,
  type ReceivedMessage,
  ToolRequest,
} from "@blindpipe/client";
import * as cache from "./cache.js";
import { Chat } from "./chat.js";
import { type KeptPage, withMessage, withoutPayload } from "./kept.js";
import * as line from "./line.js";
import { clearOutbox } from "./outbox.js";
import { dismiss, refreshApprovals, refreshGrants, show } from "./requests.js";

type ConversationInfo = Awaited<ReturnType<Conversation["info"]>>;

export interface Notice {
  readonly type: string;
  readonly principal_id: string | null;
  readonly conversation_id: string | null;
}

/** Latest activity first. */
export const conversations = signal<readonly ConversationInfo[]>([]);
export const notices = signal<readonly Notice[]>([]);

const MAX_LISTED = 200;
const REFRESH_DELAY_MS = 300;
const REFRESH_PAUSE_MS = 2_000;
const chats = new Map<string, Chat>();
const members = new Map<string, NonNullable<ConversationInfo["members"]>>();
let running: AbortController | null = null;
let current: Client | null = null;
/** The list is the service's, and not that of the cache. */
let isListRead = false;

export function chat(id: string): Chat {
  let found = chats.get(id);
  if (!found) {
    found = new Chat(current!.conversation(id));
    chats.set(id, found);
    void found.restore();
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
  void restoreList(client);
  refreshAll();
  try {
    for await (const event of client.events({ signal })) take(event);
  } catch (error) {
    if (!(error instanceof Closed)) throw error;
    close();
    onEnd();
  }
}

/** Shows the list of the cache, unless the service was faster. */
async function restoreList(reader: Client): Promise<void> {
  const kept = await cache.readList<ConversationInfo[]>();
  if (kept && reader === current && !isListRead) conversations.value = kept;
}

/** Has the cache keep what this page shows already. */
export function fillCache(): void {
  cache.writeList(conversations.value);
  for (const open of chats.values()) open.save();
}

function refreshAll(): void {
  if (!current) return;
  read(refreshConversations());
  read(refreshApprovals(current));
  read(refreshGrants(current));
}

/** The service keeps events for some days only, and what was missed before is in the histories. */
export function resync(): void {
  // What was deleted meanwhile must not stay.
  void cache.keepOnly([]);
  for (const open of chats.values()) read(open.catchUp());
  refreshAll();
}

export function close(): void {
  running?.abort();
  running = null;
  current = null;
  isListRead = false;
  chats.clear();
  members.clear();
  clearOutbox();
  batch(() => {
    conversations.value = [];
    notices.value = [];
    line.lost();
  });
}

let refreshedAt = -Infinity;
let refreshing: ReturnType<typeof setTimeout> | null = null;

/** Events come in bursts; the list is read once after them, and in a long burst each two seconds. */
function refreshSoon(): void {
  const wait = Math.max(REFRESH_DELAY_MS, refreshedAt + REFRESH_PAUSE_MS - performance.now());
  refreshing ??= setTimeout(() => {
    refreshing = null;
    refreshedAt = performance.now();
    if (current) read(refreshConversations());
  }, wait);
}

export async function refreshConversations(): Promise<void> {
  const reader = current!;
  const found: ConversationInfo[] = [];
  for await (const info of reader.conversations()) {
    found.push({ ...info, members: info.members ?? members.get(info.conversation_id) });
    if (found.length === MAX_LISTED) break;
  }
  if (reader !== current) return;
  isListRead = true;
  conversations.value = found;
  if (found.length < MAX_LISTED) await cache.keepOnly(found.map(({ conversation_id: id }) => id));
  await nameMembers(reader, found);
  cache.writeList(conversations.value);
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
      takeMessage(event.conversation.id, event);
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
        if (!open.isRead) read(open.older());
        void open.join();
      }
      if (!isListRead) refreshAll();
      break;
    case "event":
      takeOther(event.event.event, event.event.data);
  }
}

function takeMessage(id: string, received: ReceivedMessage): void {
  const open = chats.get(id);
  if (open) open.take(received);
  if (!open?.isRead) cache.changeChat<KeptPage>(id, (kept) => withMessage(kept, received));
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
    const [id, messageId] = [String(data["conversation_id"]), String(data["message_id"])];
    chats.get(id)?.forget(messageId);
    cache.changeChat<KeptPage>(id, (kept) => withoutPayload(kept, messageId));
  }
  if (name === "artifact_response") {
    dismiss(String(data["request_id"]));
  }
  if (/^(conversation|member|relation)\./.test(name)) members.delete(String(data["conversation_id"]));
  if (/^(conversation|member|relation|message)\./.test(name)) refreshSoon();
}

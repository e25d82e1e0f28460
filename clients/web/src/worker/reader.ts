/** Opens what a push tells of, and decides what a notification shows as a whole. It learns nothing that the page would need. */
import { type ApprovalRequest, Client, contentView, type ReceivedMessage } from "@blindpipe/client";
import { HARM_TEXTS, t } from "../i18n/words.js";
import * as storage from "../model/storage.js";
import { visible, withoutDirections } from "../parts/visible.js";

/** What a push says. */
interface Pushed {
  readonly event?: string;
  readonly conversation_id?: string;
  readonly id?: string;
}

/** The question that a press decides. What the notification does not show whole, a press can only deny. */
type Question = { readonly id: string; readonly canApprove: boolean } & (
  | { readonly kind: "approval"; readonly digest: string }
  | { readonly kind: "grant"; readonly scopes: string }
);

/** What a notification shows in place of its general words. */
interface Words {
  readonly title: string;
  readonly body: string;
  /** There are buttons for it. */
  readonly question?: Question | undefined;
}

type Grant = Awaited<ReturnType<Client["decideGrant"]>>;

const NEWEST_MESSAGES = 5;
const MAX_CHARACTERS = 200;
/** Browsers cut longer texts, and nobody decides on a text that is cut. */
const MAX_DECIDED_CHARACTERS = 160;
const MAX_DECIDED_LINES = 4;

/** Null where the person wants no words, or nothing opens. */
export async function read({ event, conversation_id: conversation, id }: Pushed): Promise<Words | null> {
  const wish = await storage.readNotificationWords();
  const client = wish && (await resume(wish.userId));
  if (!client || !conversation) return null;
  const words = await wordsOf(client, event, conversation, id);
  return words && { ...words, question: wish.canDecide ? words.question : undefined };
}

async function resume(userId: string): Promise<Client | null> {
  const [deviceId, keys] = await Promise.all([storage.knownDeviceId(), storage.readKeys(userId)]);
  if (!deviceId || !keys) return null;
  const store = storage.readOnlyStore();
  const client = await Client.resume({ url: location.origin, deviceId, platform: "web", store });
  if (client.userId !== userId) return null;
  client.devices.useKeys(keys);
  return client;
}

async function wordsOf(client: Client, event = "", conversation: string, id = ""): Promise<Words | null> {
  switch (event) {
    case "message.created":
      return ofMessage(client, conversation);
    case "approval.requested":
      return ofApproval(client, await client.approval(id));
    case "grant.requested":
      return ofGrant(client, await grant(client, id));
    default:
      return null;
  }
}

async function ofMessage(client: Client, id: string): Promise<Words | null> {
  const conversation = client.conversation(id);
  const newest = await newestOfOthers(client, conversation.history({ limit: NEWEST_MESSAGES }));
  if (!newest?.opened) return null;
  const { text } = contentView(newest.opened.content);
  if (text === "") return null;
  const { title, members } = await conversation.info();
  const sender = nameIn(members, newest.message.sender.id);
  return { title: title ? `${sender} · ${withoutDirections(title)}` : sender, body: cut(text) };
}

async function newestOfOthers(
  { userId }: Client,
  newestFirst: AsyncIterable<ReceivedMessage>,
): Promise<ReceivedMessage | null> {
  let left = NEWEST_MESSAGES;
  for await (const received of newestFirst) {
    if (received.message.sender.id !== userId) return received;
    if (--left === 0) break;
  }
  return null;
}

async function ofApproval(client: Client, request: ApprovalRequest): Promise<Words | null> {
  const { approval, question } = request;
  if (!question || approval.state !== "open") return null;
  const { members } = await request.conversation.info();
  const hasArguments = Object.keys(request.arguments).length > 0;
  const text = visible(request.text);
  const body = hasArguments ? `${text}\n${visible(JSON.stringify(request.arguments))}` : text;
  const canApprove = approval.kind === "approve" && isShownWhole(body);
  const isAsked = approval.asked.includes(client.userId);
  return {
    title: t("push_asks", { name: nameIn(members, approval.agent_id) }),
    body: cut(body),
    question: isAsked ? { kind: "approval", id: request.id, digest: approval.digest, canApprove } : undefined,
  };
}

async function ofGrant(client: Client, asked: Grant | null): Promise<Words | null> {
  if (asked?.status !== "pending") return null;
  const { members } = await client.conversation(asked.conversation_id).info();
  const lines = asked.requested.map(({ scope, sensitivity }) => `${visible(scope)} (${t(HARM_TEXTS[sensitivity])})`);
  if (asked.reason) lines.unshift(visible(asked.reason));
  const body = lines.join("\n");
  const isHarmful = asked.requested.some(({ sensitivity }) => sensitivity === "high");
  const canApprove = !isHarmful && isShownWhole(body);
  return {
    title: t("grant_asks", { agent: nameIn(members, asked.agent_id) }),
    body: cut(body),
    question: { kind: "grant", id: asked.grant_id, scopes: scopesOf(asked), canApprove },
  };
}

async function grant(client: Client, id: string): Promise<Grant | null> {
  for await (const one of client.grants()) if (one.grant_id === id) return one;
  return null;
}

/** Throws if the question cannot be decided, or is another than the notification showed. */
export async function decide(answer: "approve" | "deny", question: Question): Promise<string> {
  const wish = await storage.readNotificationWords();
  const client = wish?.canDecide ? await resume(wish.userId) : null;
  if (!client) throw new Error("nobody decides here");
  if (answer === "approve" && !question.canApprove) throw new Error("the question was not shown whole");
  if (question.kind === "approval") {
    const request = await client.approval(question.id);
    if (request.approval.digest !== question.digest) throw new Error("another question was shown");
    await (answer === "approve" ? request.approve() : request.deny());
  } else {
    const asked = await grant(client, question.id);
    if (!asked || scopesOf(asked) !== question.scopes) throw new Error("another permission was shown");
    await client.decideGrant(question.id, answer);
  }
  return t(answer === "approve" ? "push_approved" : "push_denied_it");
}

const scopesOf = ({ requested, ttl_seconds }: Grant): string => JSON.stringify([requested, ttl_seconds]);

type Members = Awaited<ReturnType<ReturnType<Client["conversation"]>["info"]>>["members"];

function nameIn(members: Members, id: string): string {
  return visible(members?.find((member) => member.principal_id === id)?.display_name ?? "?");
}

function isShownWhole(text: string): boolean {
  return text.length <= MAX_DECIDED_CHARACTERS && text.split("\n").length <= MAX_DECIDED_LINES;
}

function cut(text: string): string {
  const characters = [...text];
  return characters.length <= MAX_CHARACTERS ? text : `${characters.slice(0, MAX_CHARACTERS - 1).join("")}…`;
}

/** What the buttons say. */
export const labels = { approve: t("approve"), deny: t("deny"), failed: t("push_undecided") };

/** The kinds of contents, and what a reader shows of them: `docs/content.md`. */
import { fromBase64, hex, idBytes, isId, utf8 } from "../e2ee/bytes.js";
import type { Json, JsonObject } from "../e2ee/content.js";
import { UsageError } from "../e2ee/errors.js";

export type ContentKind =
  | "text"
  | "question"
  | "answer"
  | "approval"
  | "decision"
  | "file"
  | "status"
  | "edit"
  | "delete"
  | "reaction"
  | "unknown";

/** What a reader shows of a content. */
export interface ContentView {
  readonly kind: ContentKind;
  /**
   * The words: a file's caption or name, an answer's choice, the fallback of what is unknown.
   * Empty for a change of another message.
   */
  readonly text: string;
  readonly markdown: boolean;
}

const MAX_STATUS_CHARS = 500;
const MAX_EMOJI_BYTES = 64;
const HASH_BYTES = 32;
const HIDDEN = /[\u0000-\u0020\u007f-\u00a0]/;

function text(value: Json | undefined): string | null {
  return typeof value === "string" ? value : null;
}

/** Looks at a content. Every object has a view. */
export function contentView(content: JsonObject): ContentView {
  const known = wordsOf(content);
  const { type, format, fallback } = content;
  if (known === null) return { kind: "unknown", text: text(fallback) ?? "", markdown: false };
  const markdown = type === "text" && format === "markdown";
  return { kind: type as ContentKind, text: known, markdown };
}

/** The words of a content; null if it is unknown. */
function wordsOf(content: JsonObject): string | null {
  const words = text(content["text"]);
  const choice = text(content["choice"]);
  switch (content["type"]) {
    case "text":
    case "question":
      return words;
    case "answer":
      return choice ?? words;
    case "approval":
      return text(content["name"]) === null ? null : words;
    case "decision":
      return isDecision(content["decision"]) ? (choice ?? words ?? content["decision"]) : null;
    case "file":
      return isFile(content) ? (text(content["caption"]) ?? text(content["name"])) : null;
    case "status":
      return words !== null && [...words].length <= MAX_STATUS_CHARS ? words : null;
    default:
      return changeOf(content) ? "" : null;
  }
}

function isDecision(value: Json | undefined): value is "approved" | "denied" | "answered" {
  return value === "approved" || value === "denied" || value === "answered";
}

function isFile(content: JsonObject): boolean {
  return ["name", "object_key", "sha256", "key"].every((name) => text(content[name]) !== null);
}

/** The message that a change is about. The hash binds it to what the author saw. */
export interface Target {
  readonly messageId: string;
  /** Null for a message in clear. */
  readonly re: string | null;
}

/** A message that changes an earlier one. */
export type Change = { readonly target: Target } & (
  | { readonly kind: "edit"; readonly content: JsonObject }
  | { readonly kind: "delete" }
  | { readonly kind: "reaction"; readonly emoji: string; readonly isRemoved: boolean }
);

/** Null for a content that is no change, or a malformed one. */
export function changeOf(content: JsonObject): Change | null {
  const target = targetOf(content["target"]);
  if (!target) return null;
  switch (content["type"]) {
    case "edit": {
      const edited = content["content"];
      return isObject(edited) && isEditable(edited) ? { kind: "edit", target, content: edited } : null;
    }
    case "delete":
      return { kind: "delete", target };
    case "reaction": {
      const emoji = text(content["emoji"]);
      const isRemoved = content["remove"] === true;
      return emoji !== null && isEmoji(emoji) ? { kind: "reaction", target, emoji, isRemoved } : null;
    }
    default:
      return null;
  }
}

/** The target of a change, as its content names it. */
export function target(messageId: string, re: string | null): JsonObject {
  return re === null ? { message_id: messageId } : { message_id: messageId, re };
}

/** The content that replaces that of the target. */
export function editContent(target: JsonObject, content: JsonObject): JsonObject {
  if (!isEditable(content)) throw new UsageError("a text or a file can be edited");
  return { type: "edit", target, content, fallback: contentView(content).text };
}

/** The content that takes the target back. */
export function deleteContent(target: JsonObject): JsonObject {
  return { type: "delete", target, fallback: "" };
}

/** The content that puts an emoji beside the target, or takes it away. */
export function reactionContent(
  target: JsonObject,
  emoji: string,
  { remove = false }: { readonly remove?: boolean } = {},
): JsonObject {
  if (!isEmoji(emoji)) throw new UsageError("an emoji is 1 to 64 bytes without spaces");
  const content: JsonObject = { type: "reaction", target, emoji, fallback: emoji };
  return remove ? { ...content, remove } : content;
}

function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isEditable(content: JsonObject): boolean {
  const { kind } = contentView(content);
  return kind === "text" || kind === "file";
}

function targetOf(target: Json | undefined): Target | null {
  if (!isObject(target)) return null;
  const id = text(target["message_id"]);
  if (id === null || !isId(id)) return null;
  const messageId = hex(idBytes(id));
  if (!("re" in target)) return { messageId, re: null };
  const re = hashOf(target["re"]);
  return re === null ? null : { messageId, re };
}

/** A hash in base64, checked; null if it is none. */
function hashOf(value: Json | undefined): string | null {
  const encoded = text(value);
  try {
    return encoded !== null && fromBase64(encoded).length === HASH_BYTES ? encoded : null;
  } catch {
    return null;
  }
}

function isEmoji(emoji: string): boolean {
  const bytes = utf8(emoji).length;
  return bytes >= 1 && bytes <= MAX_EMOJI_BYTES && !HIDDEN.test(emoji);
}

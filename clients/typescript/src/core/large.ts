/** Contents that do not fit an envelope, and events that do not fit a delivery. */
import { fromUtf8, hex } from "../e2ee/bytes.js";
import {
  type JsonObject,
  MAX_CONTENT_BYTES,
  decodeContent,
  encodeLargeContent,
} from "../e2ee/content.js";
import { DecryptError } from "../e2ee/errors.js";
import type { FileContent } from "../e2ee/file.js";
import { sha256 } from "../e2ee/primitives.js";
import { ApiError, ConnectionLost } from "../errors.js";
import type { Http } from "../transport/http.js";
import { downloadFile, objectPath, uploadFile } from "./files.js";
import type { EventObject } from "./types.js";

/** A reader takes no larger content from a file. */
export const MAX_LARGE_CONTENT_BYTES = 16 * 1024 * 1024;
/** Of a content, for what a send adds to it. */
const RESERVED_BYTES = 1_024;

/** The content, or the reference to the file that it was put into. `base` is for uploads. */
export async function fittingContent(
  http: Http,
  base: string,
  conversationId: string,
  content: JsonObject,
): Promise<JsonObject> {
  const bytes = encodeLargeContent(content, MAX_LARGE_CONTENT_BYTES);
  if (bytes.length <= MAX_CONTENT_BYTES - RESERVED_BYTES) return content;
  const file = { name: "content", contentType: "application/json", bytes };
  const stored = await uploadFile(http, base, conversationId, file);
  const { file_id, object_key, size, sha256: hash, key } = stored;
  return { type: "content_ref", file_id, object_key, size, sha256: hash, key };
}

/** A content, and its exact text. */
export interface Source {
  readonly content: JsonObject;
  readonly source: string;
}

/** The content that a reference leads to; any other content as it is. */
export async function resolvedContent(http: Http, given: Source): Promise<Source> {
  const { content } = given;
  const { size } = content;
  if (content["type"] !== "content_ref" || typeof size !== "number") return given;
  if (size > MAX_LARGE_CONTENT_BYTES) return given;
  try {
    const bytes = await downloadFile(http, content as unknown as FileContent);
    const inner = decodeContent(bytes, MAX_LARGE_CONTENT_BYTES);
    if (inner["type"] === "content_ref") return given;
    const re = content["re"];
    return {
      content: re === undefined ? inner : { ...inner, re },
      source: fromUtf8(bytes),
    };
  } catch (error) {
    // A file that is gone leads nowhere; one that cannot be read now is read later.
    const isGone = error instanceof ApiError && error.status === 404;
    if (isGone || error instanceof DecryptError) return given;
    throw error;
  }
}

/** The data of an event are not those that its delivery names. Another attempt may bring the right ones. */
export class OtherEventData extends ConnectionLost {
  constructor() {
    super("the data of an event are not those that its delivery names");
  }
}

/**
 * The event with its data, if a delivery has a reference in their place. Throws `OtherEventData` if
 * size or hash differ.
 */
export async function resolvedEvent(http: Http, event: EventObject): Promise<EventObject> {
  const named = event.data?.["object_ref"] as JsonObject | undefined;
  if (typeof named !== "object" || named === null) return event;
  if (Object.keys(event.data).length !== 1) return event;
  const response = await http.bytes({
    method: "GET",
    path: objectPath(named["object_key"]),
    query: signedQuery(String(named["url"])),
    isPublic: true,
  });
  const bytes = new Uint8Array(await response.arrayBuffer());
  const isSame = hex(await sha256(bytes)) === String(named["sha256"]).toLowerCase();
  if (bytes.length !== named["size"] || !isSame) throw new OtherEventData();
  return { ...event, data: JSON.parse(fromUtf8(bytes)) as JsonObject };
}

/** The address is asked of the own service, whatever host it names. */
function signedQuery(url: string): Record<string, string> {
  const query = URL.canParse(url) ? new URL(url).searchParams : new URLSearchParams();
  const names = ["expires", "sig"].filter((name) => query.has(name));
  return Object.fromEntries(names.map((name) => [name, query.get(name)!]));
}

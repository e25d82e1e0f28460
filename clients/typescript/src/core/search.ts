/** Search tokens of messages that are sent, and of words that are looked for. */
import type { JsonObject } from "../e2ee/content.js";
import { envelopeOf, readHeader } from "../e2ee/envelope.js";
import { MAX_MESSAGE_TOKENS, searchTokens, searchWords } from "../e2ee/search.js";
import { contentView } from "./content.js";
import type { Session } from "./session.js";

/** Each epoch is a search of its own, and the service allows ten in a minute. */
const SEARCHED_EPOCHS = 8;

/** The tokens of a content's words, under the secret that its payload is sealed with. */
export async function messageTokens(
  session: Session,
  conversationId: string,
  content: JsonObject,
  payload: JsonObject,
): Promise<string[]> {
  if (payload["type"] !== "encrypted") return [];
  const { room } = await session.load(conversationId);
  const { epoch, sid } = readHeader(envelopeOf(payload));
  const secret = room.secret(epoch, sid);
  const words = searchWords(contentView(content).text).slice(0, MAX_MESSAGE_TOKENS);
  return (secret && (await searchTokens(secret, words))) ?? [];
}

/** The tokens of words under each secret of the newest epochs that this member holds, the newest first. */
export async function epochTokens(
  session: Session,
  conversationId: string,
  words: readonly string[],
): Promise<string[][]> {
  const entry = await session.load(conversationId);
  // A client that follows no events has not heard of the newest epoch.
  await session.readWraps(conversationId, entry);
  const newest = entry.room.server.epoch;
  const found: string[][] = [];
  for (let epoch = newest; epoch > Math.max(0, newest - SEARCHED_EPOCHS); epoch--) {
    if (entry.room.secrets(epoch).length === 0) {
      await session.readWraps(conversationId, entry, epoch);
    }
    for (const secret of entry.room.secrets(epoch)) {
      const tokens = await searchTokens(secret, words);
      if (tokens) found.push(tokens);
    }
  }
  return found;
}

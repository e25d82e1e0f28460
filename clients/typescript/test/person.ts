// A person's program, which is killed: it shows each message, and then says that it has seen it.
import { createHash } from "node:crypto";
import { writeSync } from "node:fs";
import { Client, IdempotencyConflict, fileStore } from "@blindpipe/client";
import { idBytes, ulid } from "@blindpipe/client/e2ee";
import { type MessageEvent, TOOLS } from "./support.js";

/** The id follows from the message, so that it is said once, in whichever life. */
async function saySeen({ conversation, message, opened }: MessageEvent): Promise<void> {
  const seen = idBytes(message.message_id);
  const hash = createHash("sha256").update(seen).digest();
  const clientMessageId = ulid(Buffer.concat([seen.subarray(0, 6), hash.subarray(0, 10)]));
  try {
    await conversation.send(`seen ${opened?.content["text"]}`, { clientMessageId });
  } catch (error) {
    // An earlier life has said it, in other bytes.
    if (!(error instanceof IdempotencyConflict)) throw error;
  }
}

const [url, path] = process.argv.slice(2);
if (url && path) {
  const client = await Client.resume({ url, store: fileStore(path), tools: TOOLS });
  for await (const event of client.events()) {
    if (event.type !== "message") continue;
    const { sender } = event.message;
    if (sender.type !== "user" || sender.id === client.userId) continue;
    // One write, which a death does not cut.
    writeSync(1, `${event.message.client_message_id} ${event.opened?.content["text"]}\n`);
    await saySeen(event);
  }
}

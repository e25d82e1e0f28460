// Contents are viewed, and made a timeline, as `docs/content.md` and the vectors say.
import assert from "node:assert/strict";
import { test } from "node:test";
import { contentView, DecryptError, timeline } from "@blindpipe/client";
import type { ReceivedMessage, TimelineItem } from "@blindpipe/client";
import { read, type Vector } from "./vector-support.js";

const { kinds, folds } = read("content_kinds");

function received(made: Vector): ReceivedMessage {
  const { message_id, seq, sender, state, content, re } = made;
  const message = {
    message_id,
    conversation_id: "0192f0c1-0000-7000-8000-000000000001",
    seq,
    sender,
    payload: state === "deleted" ? null : { type: "encrypted" },
    hop: 0,
    created_at: "2026-03-01T12:00:00.000Z",
  } as ReceivedMessage["message"];
  if (content === null) return { message, opened: null, fault: new DecryptError("clear") };
  const opened = {
    content,
    source: "",
    encrypted: re !== null,
    sender: { ...sender, deviceId: null, authentic: true, pinned: false, verified: false, member: true },
    sentAt: null,
    epoch: 0,
    re,
    isReplay: false,
    notices: [],
  };
  return { message, opened, fault: null };
}

function told({ received, state, content, edits, reactions }: TimelineItem): object {
  return { message_id: received.message.message_id, state, content, edits, reactions };
}

test("contents are viewed as the vectors say", () => {
  assert.ok(kinds.length > 60);
  for (const made of kinds) {
    assert.deepEqual({ content: made.content, ...contentView(made.content) }, made);
  }
});

test("timelines are as the vectors say, in any order", () => {
  for (const made of folds) {
    const messages: ReceivedMessage[] = made.messages.map(received);
    const refs: ReceivedMessage[] = made.refs.map(received);
    for (let round = 0; round < 2; round++) {
      assert.deepEqual(timeline(messages, refs).map(told), made.shown, made.name);
      messages.reverse();
      refs.reverse();
    }
  }
});

// Order, acknowledgements and limits, without a server.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { Dispatcher } from "#dist/agent/dispatcher.js";
import { idBytes, uuid } from "@blindpipe/client/e2ee";
import type { EventObject } from "@blindpipe/client/agent";

function event(seq: number, conversation?: string): EventObject {
  return {
    event_id: String(seq),
    event: "message.created",
    cursor: `1-${seq}`,
    seq,
    created_at: "",
    data: {},
    ...(conversation ? { conversation_id: conversation } : {}),
  };
}

test("one event of a conversation at a time, several conversations at once", async () => {
  const busy = new Map<string, number>();
  const seen: number[] = [];
  const acks: string[] = [];
  let atOnce = 0;
  const dispatcher = new Dispatcher({
    concurrency: 3,
    handle: async (each) => {
      const name = each.conversation_id ?? "";
      busy.set(name, (busy.get(name) ?? 0) + 1);
      assert.equal(busy.get(name), 1);
      atOnce = Math.max(
        atOnce,
        [...busy.values()].reduce((sum, count) => sum + count, 0),
      );
      await pause(Math.random() * 4);
      busy.set(name, 0);
      seen.push(each.seq);
    },
    onProgress: (cursor) => acks.push(cursor),
  });
  for (let seq = 1; seq <= 60; seq++)
    dispatcher.push(event(seq, ["a", "b", "c", "d", undefined][seq % 5]));
  await dispatcher.idle();
  assert.equal(atOnce, 3);
  for (let rest = 0; rest < 5; rest++) {
    const line = seen.filter((seq) => seq % 5 === rest);
    assert.deepEqual(
      line,
      [...line].sort((x, y) => x - y),
    );
  }
  const numbers = acks.map((cursor) => Number(cursor.slice(2)));
  assert.deepEqual(
    numbers,
    [...numbers].sort((x, y) => x - y),
  );
  assert.equal(acks.at(-1), "1-60");
});

test("a conversation has one line, however its id is written", async () => {
  const begun: number[] = [];
  const dispatcher = new Dispatcher({
    concurrency: 8,
    handle: (each) => {
      begun.push(each.seq);
      return new Promise(() => {});
    },
    onProgress: () => {},
  });
  const id = "01JABCDEFGHJKMNPQRSTVWXYZ0";
  [id, id.toLowerCase(), uuid(idBytes(id))].forEach((each, i) => dispatcher.push(event(i, each)));
  await pause(5);
  assert.deepEqual(begun, [0]);
});

test("nothing is acknowledged beyond an event that is not handled", async () => {
  const acks: string[] = [];
  let finish!: () => void;
  const slow = new Promise<void>((resolve) => (finish = resolve));
  const dispatcher = new Dispatcher({
    concurrency: 8,
    handle: (each) => (each.seq === 2 ? slow : Promise.resolve()),
    onProgress: (cursor) => acks.push(cursor),
  });
  for (let seq = 1; seq <= 5; seq++) dispatcher.push(event(seq, String(seq)));
  await pause(5);
  assert.deepEqual(acks, ["1-1"]);
  finish();
  await dispatcher.idle();
  assert.equal(acks.at(-1), "1-5");
});

test("after a stop nothing begins, and what failed is not acknowledged", async () => {
  const acks: string[] = [];
  const begun: number[] = [];
  const dispatcher = new Dispatcher({
    concurrency: 1,
    handle: async (each) => {
      begun.push(each.seq);
      await pause(2);
      throw new Error("no");
    },
    onProgress: (cursor) => acks.push(cursor),
  });
  dispatcher.push(event(1, "a"));
  dispatcher.push(event(2, "a"));
  dispatcher.stop();
  await dispatcher.idle();
  assert.deepEqual([begun, acks], [[1], []]);
});

test("an event that waits for something holds up acknowledgements alone, and is given up like the others", async () => {
  const handled: number[] = [];
  const acks: string[] = [];
  const dispatcher = new Dispatcher({
    concurrency: 1,
    handle: async (each) => void handled.push(each.seq),
    onProgress: (cursor) => acks.push(cursor),
  });
  let release!: () => void;
  const waiting = (): Promise<void> => new Promise((resolve) => (release = resolve));
  dispatcher.push(event(1), waiting());
  dispatcher.push(event(2));
  dispatcher.push(event(3, "a"));
  await pause(5);
  assert.deepEqual([handled, acks], [[2, 3], []]);
  release();
  await dispatcher.idle();
  assert.deepEqual([handled, acks], [[2, 3, 1], ["1-3"]]);
  dispatcher.push(event(4), waiting());
  dispatcher.giveUp();
  release();
  await pause(5);
  assert.deepEqual(handled, [2, 3, 1]);
});

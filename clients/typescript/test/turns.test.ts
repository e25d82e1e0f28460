// A stop reaches what runs, and messages that come meanwhile have one handler, without a server.
import assert from "node:assert/strict";
import { test } from "node:test";
import { type BusyPolicy, Turns } from "#dist/agent/turns.js";

const CONVERSATION = "01K9ZZZZZZ0000000000000009";
type Event = Parameters<Turns["arrive"]>[0];
type Taken = NonNullable<ReturnType<Turns["begin"]>>["taken"][number];

function idOf(seq: number): string {
  return `01K9ZZZZZZ00000000000000${String(seq).padStart(2, "0")}`;
}

function event(seq: number, name = "message.created", data: object = {}): Event {
  return {
    event_id: idOf(seq),
    event: name,
    cursor: `1-${seq}`,
    seq,
    conversation_id: CONVERSATION,
    created_at: "",
    data: { message_id: idOf(seq), ...data },
  };
}

test("a stop aborts the handler that runs, and nothing after it", () => {
  const turns = new Turns("queue");
  const turn = turns.begin(event(1))!;
  turns.arrive(event(2));
  turns.arrive(event(3, "turn.stop"));
  assert.ok(turn.stopped.aborted);
  turns.end(turn);
  assert.equal(turns.begin(event(2)), null, "it came before the stop");
  assert.ok(turns.begin(event(3, "turn.stop")));
  assert.ok(!turns.begin(event(4))!.stopped.aborted);
});

test("a stop of one answer stops that one", () => {
  const turns = new Turns("queue");
  const turn = turns.begin(event(1))!;
  turns.arrive(event(3, "turn.stop", { in_reply_to: idOf(2) }));
  assert.ok(!turn.stopped.aborted);
  turns.arrive(event(4, "turn.stop", { in_reply_to: idOf(1).toLowerCase() }));
  assert.ok(turn.stopped.aborted, "ids have several spellings");
});

test("a stop before the handler has begun keeps it from beginning", () => {
  const turns = new Turns("queue");
  turns.arrive(event(2, "turn.stop"));
  assert.equal(turns.begin(event(1)), null);
});

test("a message meanwhile waits, interrupts, or is dropped", () => {
  for (const policy of ["queue", "interrupt", "drop"] as BusyPolicy[]) {
    const turns = new Turns(policy);
    const turn = turns.begin(event(1))!;
    turns.arrive(event(3, "message.created", { refs: [idOf(1)] }));
    assert.ok(!turn.stopped.aborted, "a change is no message");
    turns.arrive(event(2));
    assert.equal(turn.stopped.aborted, policy === "interrupt");
    turns.end(turn);
    assert.equal(turns.begin(event(2)) === null, policy === "drop");
    assert.ok(turns.begin(event(3)));
  }
});

test("what a handler has taken is handled by it alone", () => {
  const turns = new Turns("queue");
  const take = (turn: NonNullable<ReturnType<Turns["begin"]>>): void => {
    turn.taken.push({ event: turn.arrived.shift()! } as Taken);
  };
  const failing = turns.begin(event(1))!;
  turns.arrive(event(2));
  turns.arrive(event(3));
  take(failing);
  // The handler fails, and runs again: what it took then is there again.
  const turn = turns.begin(event(1))!;
  assert.deepEqual(
    turn.arrived.map((each) => each.seq),
    [2, 3],
  );
  take(turn);
  turns.end(turn);
  assert.equal(turns.begin(event(2)), null);
  assert.ok(turns.begin(event(3)), "nobody has taken it");
});

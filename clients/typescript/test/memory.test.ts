// A backlog stays on the server. The events that wait in a client have a bound, however many come.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent, type AgentOptions } from "@blindpipe/client/agent";
import { Room, idBytes, newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster } from "@blindpipe/client/testing";
import { asAgent, heldBytes as held, running, until } from "./support.js";

const DAY_MS = 24 * 60 * 60 * 1000;
const AGE_MS = 31 * DAY_MS;
const MESSAGES = 60;
const MESSAGE_BYTES = 700_000;
/** The clients' own bound is 8 MB for each of two readers; the rest is what is on its way. */
const MAX_GROWTH_BYTES = 50_000_000;

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

test("a conversation remembers 10,000 messages against replays, in 2 MB", () => {
  const sender = { type: "user", id: newUlid() } as const;
  const room = new Room(idBytes(newUlid()));
  const ids = Array.from({ length: 30_000 }, () => newUlid());
  const before = held();
  const now = Date.now();
  // Those of the first 20,000 are too old to be handled once the last come.
  for (const id of ids.slice(0, 20_000)) room.remember(sender, id, 0, now - AGE_MS - 1);
  for (const id of ids.slice(20_000)) room.remember(sender, id, 0, now);
  assert(held() - before < 2_000_000, `${held() - before} bytes more`);
  assert(room.isRemembered(sender, ids.at(-10_000)!));
  assert(!room.isRemembered(sender, ids[0]!));
});

test("a message is remembered for 31 days, however many come", () => {
  const sender = { type: "user", id: newUlid() } as const;
  const room = new Room(idBytes(newUlid()));
  const now = Date.now();
  const [known, ahead, wrong, later, last] = Array.from({ length: 5 }, () => newUlid());
  assert.equal(room.remember(sender, known!, now - DAY_MS, now), now);
  assert.equal(room.remember(sender, ahead!, now + DAY_MS, now), now + DAY_MS);
  assert.equal(room.remember(sender, wrong!, Number.MAX_SAFE_INTEGER, now), now + AGE_MS);
  for (let n = 0; n < 20_000; n++) assert.equal(room.remember(sender, newUlid(), now, now), now);
  for (const id of [known, ahead, wrong])
    assert.equal(room.remember(sender, id!, now, now), null);
  const again = new Room(idBytes(newUlid()));
  again.rememberAll(room.remembered);
  assert.equal(again.remembered, room.remembered);
  assert.equal(again.remember(sender, known!, now, now), null);
  room.remember(sender, later!, 0, now + AGE_MS + 1);
  assert(!room.isRemembered(sender, known!));
  assert(room.isRemembered(sender, ahead!), "it could be handled");
  room.remember(sender, last!, 0, now + DAY_MS + AGE_MS + 1);
  assert(!room.isRemembered(sender, ahead!));
  assert(room.isRemembered(sender, wrong!));
});

test("two slow readers of 84 MB hold a part of it, and get everything in order", async () => {
  const ada = await cluster.user("ada");
  const made = await Promise.all(["flood", "slow"].map((name) => cluster.agent(name, ada.client)));
  const [flood, slow] = made.map(
    ({ key: _, ...options }): AgentOptions => ({ ...options, plaintext: "allow" }),
  );
  for (const { agentId } of made) await ada.client.openAgent(agentId);
  const group = await ada.client.openGroup([], { title: "slow" });
  for (const { agentId } of made) await group.addAgent(agentId, "all");
  group.chooseClear();

  let open!: () => void;
  const gate = new Promise<void>((resolve) => (open = resolve));
  const numberOf = (content: { [name: string]: unknown }): number => Number(content["number"]);
  const handled: number[] = [];
  let drops = 0;
  const agent = new Agent({ ...slow!, hooks: { disconnected: () => void (drops += 1) } });
  agent.on("message", async (ctx) => {
    await gate;
    handled.push(numberOf(ctx.payload));
  });
  const shown: number[] = [];
  const reading = (async () => {
    for await (const event of ada.client.events()) {
      if (event.type !== "message") continue;
      await gate;
      shown.push(numberOf(event.opened!.content));
      if (shown.length === MESSAGES) return;
    }
  })();
  await running(agent, async () => {
    const before = held();
    const path = `/agents/${flood!.agentId}/conversations/${group.id}/messages`;
    for (let number = 0; number < MESSAGES; number++) {
      const payload = { type: "text", number, text: "x".repeat(MESSAGE_BYTES) };
      const sent = await asAgent(flood!, "POST", path, { payload });
      assert.equal(sent.status, 201);
    }
    await until(() => drops > 0);
    // The parser's own memory goes soon. Events that the readers hold would stay.
    try {
      await until(() => held() - before < MAX_GROWTH_BYTES);
    } finally {
      open();
    }
    await until(() => handled.length >= MESSAGES, 30_000);
    await reading;
  });
  const wanted = Array.from({ length: MESSAGES }, (_, number) => number);
  assert.deepEqual(handled, wanted);
  assert.deepEqual(shown, wanted);
});

// A backlog stays on the server. The events that wait in a client have a bound, however many come.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Agent, type AgentOptions } from "@blindpipe/client/agent";
import { Room, idBytes, newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster } from "@blindpipe/client/testing";
import { asAgent, running, until } from "./support.js";

const MESSAGES = 60;
const MESSAGE_BYTES = 700_000;
/** The clients' own bound is 8 MB for each of two readers; the rest is what is on its way. */
const MAX_GROWTH_BYTES = 50_000_000;

setFlagsFromString("--expose-gc");
const collectGarbage = runInNewContext("gc") as () => void;

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

function held(): number {
  collectGarbage();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

test("a conversation remembers 10,000 messages against replays, in 2 MB", () => {
  const sender = { type: "user", id: newUlid() } as const;
  const room = new Room(idBytes(newUlid()));
  const ids = Array.from({ length: 30_000 }, () => newUlid());
  const before = held();
  for (const id of ids) room.remember(sender, id);
  assert(held() - before < 2_000_000, `${held() - before} bytes more`);
  assert(room.isRemembered(sender, ids.at(-10_000)!));
  assert(!room.isRemembered(sender, ids[0]!));
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

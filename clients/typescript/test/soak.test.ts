// A service that goes away again and again: each message is answered once, and memory is level.
import assert from "node:assert/strict";
import { after, before, mock, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import type { Conversation } from "@blindpipe/client";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { attackedAgent } from "./attacks.js";
import type { Proxy } from "./proxy.js";
import { answerTo, texts, until } from "./support.js";

const OUTAGES = 20;
const SHORTEST_MS = 100;
const LONGEST_MS = 600_000;
/** Longer outages, and the agent's waits between tries, are shorter by this. */
const TIME_SCALE = 300;
const PEOPLE = 20;
const MESSAGES = Number(process.env["SOAK"] ?? 1000);
/** A person may send ten messages a second. */
const BETWEEN_SENDS_MS = 200;
/** Most of it are the histories that people read in the end, in the same process. */
const MAX_GROWTH_BYTES = 120e6;
/** A slow machine answers slowly, but it never stops for so long. */
const MAX_SILENCE_MS = 30_000;
const LOOK_PAUSE_MS = 100;

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

/** Each longer than the one before by the same factor, in milliseconds of the test. */
function outages(): number[] {
  const factor = (LONGEST_MS / SHORTEST_MS) ** (1 / (OUTAGES - 1));
  const meant = Array.from({ length: OUTAGES }, (_, number) => SHORTEST_MS * factor ** number);
  return meant.map((ms) => Math.max(SHORTEST_MS, ms / TIME_SCALE));
}

async function goAway(proxy: Proxy, isConnected: () => boolean): Promise<void> {
  // Short and long ones by turns.
  const sorted = outages();
  while (sorted.length > 0) {
    const ms = sorted.length % 2 === 0 ? sorted.shift()! : sorted.pop()!;
    proxy.isAway = true;
    proxy.cut();
    await pause(ms);
    proxy.isAway = false;
    await until(isConnected);
  }
}

/** Waits until this many messages are stored. It opens none: that would take the agent's time, whose process this is. */
async function stored(user: TestUser, conversation: Conversation, count: number): Promise<void> {
  const path = `/conversations/${conversation.id}/messages`;
  const call = { method: "GET", path, query: { limit: 1 } } as const;
  let seq = 0;
  for (let end = Date.now() + MAX_SILENCE_MS; seq < count && Date.now() < end;) {
    const [newest] = await user.client.account.http.data<{ seq: number }[]>(call);
    if (newest && newest.seq > seq) {
      seq = newest.seq;
      end = Date.now() + MAX_SILENCE_MS;
    }
    await pause(LOOK_PAUSE_MS);
  }
  assert(seq >= count, `${seq} of ${count} messages are stored`);
}

async function replies(conversation: Conversation): Promise<string[]> {
  const all = (await texts(conversation)).map(String);
  return all.filter((text) => text.startsWith("You said: ")).sort();
}

test("each message is answered once while the service goes away", { timeout: 300_000 }, async () => {
  const people = await Promise.all(
    Array.from({ length: PEOPLE }, (_, number) => cluster.user(`soak${number}`)),
  );
  const each = MESSAGES / PEOPLE;
  const { random } = Math;
  const shorter = mock.method(Math, "random", () => random() / TIME_SCALE);
  await attackedAgent(cluster, people[0]!, async ({ proxy, victim, options }) => {
    const talks = await Promise.all(
      people.map(({ client }) => client.openAgent(options.agentId)),
    );
    const say = async (conversation: Conversation): Promise<void> => {
      for (let number = 0; number < each; number++) {
        await conversation.send(String(number));
        await pause(BETWEEN_SENDS_MS);
      }
    };
    let before = 0;
    const look = async (): Promise<void> => {
      await until(() => victim.heard.length > MESSAGES / 4, 60_000);
      before = process.memoryUsage().rss;
    };
    let seen = victim.connections;
    const isConnected = (): boolean => victim.connections > seen && (seen = victim.connections) > 0;
    await Promise.all([goAway(proxy, isConnected), look(), ...talks.map(say)]);
    const wanted = Array.from({ length: each }, (_, number) => `You said: ${number}`).sort();
    for (const [number, talk] of talks.entries()) {
      await stored(people[number]!, talk, 2 * each);
      assert.deepEqual(await replies(talk), wanted);
    }
    const growth = process.memoryUsage().rss - before;
    assert(growth < MAX_GROWTH_BYTES, `${growth} bytes`);
    const alive = await answerTo(people[0]!, () => talks[0]!.send("Are you there?"));
    assert.equal(alive.opened?.content["text"], "You said: Are you there?");
    for (const talk of talks.slice(1)) assert.deepEqual(await replies(talk), wanted);
  });
  shorter.mock.restore();
});

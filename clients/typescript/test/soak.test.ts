// A service that goes away again and again: each message is answered once, and memory is level.
import assert from "node:assert/strict";
import { after, before, mock, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { type Conversation, isOutage } from "@blindpipe/client";
import { newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { attackedAgent } from "./attacks.js";
import { Proxy } from "./proxy.js";
import { answerTo, fromAgent, heldBytes, texts, until } from "./support.js";

const OUTAGES = 20;
const SHORTEST_MS = 100;
const LONGEST_MS = 600_000;
/** Longer outages, and the agent's waits between tries, are shorter by this. */
const TIME_SCALE = 300;
/** A client renews a token 30 s before its end, so theirs live for a second. */
const TOKEN_S = 31;
const REFUSED_TOKEN = 4401;
const PEOPLE = 20;
/** The service goes away for these people too. The others see what the agent alone makes of it. */
const PEOPLE_BEHIND = 5;
const MESSAGES = Number(process.env["SOAK"] ?? 1000);
/** A person may send ten messages a second. */
const BETWEEN_SENDS_MS = 200;
/** Makes a message as large as those that people write, so that one that is kept is found. */
const PADDING = "x".repeat(3_000);
/**
 * Of the agent and all people, from a quarter of the messages to the end, without garbage. It is
 * 3.2 MB, and 7 MB if the agent keeps its events.
 */
const MAX_GROWTH_BYTES = 5e6;
/** A slow machine answers slowly, but it never stops for so long. */
const MAX_SILENCE_MS = 30_000;
const LOOK_PAUSE_MS = 100;

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

/**
 * Each is longer than the one before by the same factor, in milliseconds of the test. Short and long
 * ones come by turns.
 */
function outages(): number[] {
  const factor = (LONGEST_MS / SHORTEST_MS) ** (1 / (OUTAGES - 1));
  const meant = Array.from({ length: OUTAGES }, (_, number) => SHORTEST_MS * factor ** number);
  const sorted = meant.map((ms) => Math.max(SHORTEST_MS, ms / TIME_SCALE));
  return meant.map((_, number) => (number % 2 === 0 ? sorted.shift()! : sorted.pop()!));
}

async function goAway(all: readonly number[], forAgent: Proxy, forPeople: Proxy): Promise<void> {
  for (const ms of all) {
    forAgent.isAway = forPeople.isAway = true;
    forAgent.cut();
    // The token of a person ends with the service, so a renewal meets the outage.
    forPeople.end(REFUSED_TOKEN);
    await until(() => !forAgent.isConnected && !forPeople.isConnected);
    await pause(ms);
    forAgent.isAway = forPeople.isAway = false;
    await until(() => forAgent.isConnected && forPeople.isConnected);
  }
}

/** People whose only way is the service that goes away, with tokens that end soon. */
class Behind {
  renewals = 0;
  refusedRenewals = 0;
  /** The texts of the agent that each of them was shown. */
  readonly shown: string[][] = [];
  readonly #ending = new AbortController();
  /** The events of somebody have ended. */
  hasEnded = false;

  constructor(readonly proxy: Proxy) {
    proxy.onAnswer = ({ path }, answer) => {
      if (!path.startsWith("/auth/") || !answer.body.data?.access_token) return undefined;
      const data = { ...answer.body.data, expires_in_seconds: TOKEN_S };
      return { ...answer, body: { ...answer.body, data } };
    };
  }

  async person(name: string): Promise<TestUser> {
    const retry = ({ route }: { route: string }): void => {
      if (route === "POST /auth/refresh") this.refusedRenewals += 1;
    };
    const onSession = (): void => void (this.renewals += 1);
    const user = await cluster.user(name, { url: this.proxy.url, hooks: { retry }, onSession });
    const shown: string[] = [];
    this.shown.push(shown);
    const watch = async (): Promise<void> => {
      for await (const event of user.client.events({ signal: this.#ending.signal }))
        if (fromAgent(event)) shown.push(beginning(String(event.opened?.content["text"])));
    };
    void watch().catch(() => {}).then(() => (this.hasEnded = true));
    return user;
  }

  leave(): void {
    this.#ending.abort();
    this.proxy.close();
  }
}

/** Says it once, however often the service is away. */
async function say(conversation: Conversation, text: string): Promise<void> {
  for (const clientMessageId = newUlid(); ; await pause(BETWEEN_SENDS_MS)) {
    try {
      await conversation.send(text, { clientMessageId });
      return;
    } catch (error) {
      if (!isOutage(error)) throw error;
    }
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
  return all.filter((text) => text.startsWith("You said: ")).map(beginning).sort();
}

/** A reply without its padding. A longer part would keep the whole. */
function beginning(text: string): string {
  return text.slice(0, "You said: 00".length).trim();
}

test("each message is answered once while the service goes away", { timeout: 300_000 }, async (t) => {
  const behind = new Behind(await Proxy.start(cluster.nodes[0]!));
  t.after(() => behind.leave());
  const people = await Promise.all(
    Array.from({ length: PEOPLE }, (_, number) =>
      number < PEOPLE_BEHIND ? behind.person(`behind${number}`) : cluster.user(`soak${number}`),
    ),
  );
  people.reverse();
  const each = MESSAGES / PEOPLE;
  const { random } = Math;
  const shorter = mock.method(Math, "random", () => random() / TIME_SCALE);
  await attackedAgent(cluster, people[0]!, async ({ proxy, victim, options }) => {
    const talks = await Promise.all(
      people.map(({ client }) => client.openAgent(options.agentId)),
    );
    let said = 0;
    const sayAll = async (conversation: Conversation, end: number): Promise<void> => {
      for (let number = said; number < end; number++) {
        await say(conversation, `${number} ${PADDING}`);
        await pause(BETWEEN_SENDS_MS);
      }
    };
    /** What the test keeps itself does not count. */
    const held = (): number => {
      for (const own of [proxy.requests, behind.proxy.requests, victim.heard]) own.splice(0);
      return heldBytes();
    };
    /** Says all up to a number while the service goes away, and waits until all is answered. */
    const talk = async (end: number, all: readonly number[]): Promise<void> => {
      const says = talks.map((conversation) => sayAll(conversation, end));
      await Promise.all([goAway(all, proxy, behind.proxy), ...says]);
      said = end;
      for (const [number, own] of talks.entries()) await stored(people[number]!, own, 2 * said);
      await until(() => behind.shown.every((shown) => shown.length >= said), MAX_SILENCE_MS);
    };
    const all = outages();
    await talk(Math.floor(each / 4), all.splice(0, OUTAGES / 4));
    const before = held();
    await talk(each, all);
    const growth = held() - before;
    const wanted = Array.from({ length: each }, (_, number) => `You said: ${number}`).sort();
    assert(growth < MAX_GROWTH_BYTES, `${growth} bytes`);
    for (const talk of talks) assert.deepEqual(await replies(talk), wanted);
    for (const shown of behind.shown) assert.deepEqual(shown.toSorted(), wanted);
    assert(!behind.hasEnded, "nobody's events have ended");
    assert(behind.renewals > OUTAGES && behind.refusedRenewals > OUTAGES);
    const alive = await answerTo(people[0]!, () => talks[0]!.send("Are you there?"));
    assert.equal(alive.opened?.content["text"], "You said: Are you there?");
    for (const talk of talks.slice(1)) assert.deepEqual(await replies(talk), wanted);
  });
  shorter.mock.restore();
});

// Several processes of one agent share its conversations.
import assert from "node:assert/strict";
import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import {
  Agent,
  type AgentOptions,
  type Handled,
  type SharedStore,
  StoreChanged,
  type StoredTrust,
  UsageError,
  filePins,
  postgresStore,
  POSTGRES_TABLES,
} from "@blindpipe/client/agent";
import { hex, newUlid } from "@blindpipe/client/e2ee";
import { type DevCluster, devCluster } from "@blindpipe/client/testing";
import pg from "pg";
import type { FromChild } from "./sharer.js";
import { Texts } from "#dist/e2ee/texts.js";
import { texts } from "./support.js";

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

/** A database of its own, with the tables of stores. */
async function database(name: string): Promise<string> {
  const { postgres_url } = JSON.parse(readFileSync(cluster.file, "utf8")) as { postgres_url: string };
  const url = new URL(postgres_url);
  await ask(url, [`drop database if exists ${name} with (force)`, `create database ${name}`]);
  url.pathname = `/${name}`;
  await ask(url, POSTGRES_TABLES);
  return url.href;
}

async function ask(url: URL, statements: readonly string[]): Promise<void> {
  const db = new pg.Client({ connectionString: url.href });
  await db.connect();
  for (const statement of statements) await db.query(statement);
  await db.end();
}

interface Turn {
  readonly by: number;
  readonly begins: number;
  ends: number | null;
}

test("two processes answer each message once and in order, also when one is killed", async () => {
  const people = await Promise.all([0, 1, 2, 3].map((n) => cluster.user(`person-${n}`)));
  const options = await cluster.agent("shared", people[0]!.client);
  await new Agent(options).check();
  const talks = await Promise.all(people.map(({ client }) => client.openAgent(options.agentId)));
  const storeUrl = await database("sharers");
  const turns = new Map<string, Turn[]>();
  let clock = 0;
  const start = (node: number): ChildProcess => {
    const child = fork(fileURLToPath(new URL("sharer.js", import.meta.url)), {
      env: { ...environment({ ...options, url: cluster.nodes[node]! }), STORE_URL: storeUrl },
    });
    const by = child.pid!;
    child.on("message", (message: FromChild) => {
      clock += 1;
      const all = turns.get(message.conversation) ?? [];
      turns.set(message.conversation, all);
      if (message.type === "begins") all.push({ by, begins: clock, ends: null });
      else all.findLast((turn) => turn.by === by)!.ends = clock;
    });
    return child;
  };
  let sent = 0;
  const say = async (times: number): Promise<void> => {
    for (let n = 0; n < times; n++) {
      await Promise.all(talks.map((talk) => talk.send(`message ${sent}`)));
      sent += 1;
    }
  };
  const answers = async (talk: (typeof talks)[number]): Promise<string[]> =>
    (await texts(talk)).map(String).filter((text) => text.includes(", by "));
  const untilAnswered = async (): Promise<void> => {
    for (const talk of talks) while ((await answers(talk)).length < sent) await pause(200);
  };
  const children = [start(0), start(1)];
  try {
    await say(3);
    await untilAnswered();
    // A process that has conversations is killed, so others must take them.
    const answeredBy = (await answers(talks[0]!)).at(-1)!.split(" ").at(-1);
    const victim = children.find(({ pid }) => String(pid) === answeredBy)!;
    const saying = say(6);
    await pause(300);
    victim.kill("SIGKILL");
    await saying;
    children.push(start(0));
    await untilAnswered();
    await say(2);
    await untilAnswered();
    for (const child of children.filter((each) => each !== victim)) {
      const ended = once(child, "exit");
      child.kill("SIGTERM");
      assert.deepEqual(await ended, [0, null]);
    }
  } finally {
    for (const child of children) child.kill("SIGKILL");
  }
  const answering = new Set<string>();
  for (const talk of talks) {
    const all = await answers(talk);
    const messages = all.map((text) => text.split(",")[0]);
    assert.deepEqual(
      messages,
      Array.from({ length: sent }, (_, n) => `message ${n}`),
    );
    for (const text of all) answering.add(text.split(" ").at(-1)!);
  }
  assert.ok(answering.size > 1);
  for (const all of turns.values()) {
    all.slice(1).forEach((turn, n) => {
      const before = all[n]!;
      // A turn of a killed process has no end.
      const isOver = before.ends === null ? before.by !== turn.by : before.ends <= turn.begins;
      assert.ok(isOver, JSON.stringify([before, turn]));
    });
  }
});

function environment(options: AgentOptions): NodeJS.ProcessEnv {
  return {
    ...process.env,
    BLINDPIPE_URL: options.url,
    BLINDPIPE_AGENT_ID: options.agentId,
    BLINDPIPE_TOKEN: options.token,
    BLINDPIPE_KEY: String(options.key),
  };
}

test("a tap reaches a key that another process has seen", async () => {
  const ada = await cluster.user("ada");
  const options = await cluster.agent("tapped", ada.client);
  const db = new pg.Pool({ connectionString: await database("tapped"), max: 2 });
  const [one, other] = [1, 2].map(() => new Agent({ ...options, pins: postgresStore(db, "tapped") })) as [Agent, Agent];
  await one.check();
  await other.check();
  const talk = await ada.client.openAgent(options.agentId);
  await talk.send("hello");
  await one.approve(talk.id, "sign");
  const keyId = hex(ada.client.session.options.signer!.keyId);
  let isTapped = false;
  while (!isTapped) {
    // Keys are stored half a second after they are learned.
    await pause(100);
    const tap = other.trust(ada.client.self, keyId);
    isTapped = await tap.then(
      () => true,
      () => false,
    );
  }
  await assert.rejects(other.trust(ada.client.self, "00".repeat(16)), UsageError);
  await db.end();
});

test("a store in Postgres tells each process what others have saved", async () => {
  const db = new pg.Pool({ connectionString: await database("stores"), max: 2 });
  const process = (): SharedStore => postgresStore(db, "replies");
  const [one, other] = [process(), process()];
  assert.equal(await one.load(), null);
  assert.equal(await other.load(), null);
  const marks = (epoch: number): StoredTrust["marks"] => ({ [talk]: { epoch, time: 7 } });
  await one.save({ pins: pinned("ada", "bob"), marks: marks(1) });
  // A save over what was not read is refused as a whole.
  await assert.rejects(other.save({ pins: pinned("bob", "eve"), marks: {} }), StoreChanged);
  const { pins, marks: none } = await other.news(null);
  assert.deepEqual([Object.keys(pins).sort(), none], [["ada", "bob"], {}]);
  await other.save({ pins: pinned("bob", "eve"), marks: {} });
  assert.deepEqual(Object.keys((await one.news(null)).pins).sort(), ["bob", "eve"]);
  assert.deepEqual((await one.news(null)).pins, {});

  // Whoever enters a conversation reads what is known of it.
  const message: Handled = { at: Date.now(), conversationId: talk, sender, clientMessageId: newUlid() };
  const old = { ...message, at: Date.now() - 40 * 24 * 3_600_000, clientMessageId: newUlid() };
  await one.addHandled([message, message, old]);
  await assert.rejects(other.save({ pins: pinned(), marks: marks(2) }), StoreChanged);
  const entered = await other.news(talk);
  assert.deepEqual([entered.cameBack, entered.marks], [true, marks(1)]);
  assert.deepEqual(entered.handled.map(({ at }) => at).sort(), [old.at, message.at]);
  await other.save({ pins: pinned(), marks: marks(2) });
  let again = await other.news(talk);
  for (let turn = 0; turn < 200 && again.handled.length > 0; turn++) {
    // Handled messages come once more while a transaction runs anywhere in this Postgres.
    assert.deepEqual([again.cameBack, again.marks], [false, {}]);
    await pause(50);
    again = await other.news(talk);
  }
  assert.deepEqual([again.cameBack, again.handled, again.marks], [false, [], {}]);
  const back = await one.news(talk);
  assert.deepEqual([back.cameBack, back.marks, back.handled], [true, marks(2), []]);

  // A process that starts has all of it, but for what is too old to come again.
  const third = process();
  const loaded = await third.load();
  assert.deepEqual(Texts.of(loaded!.marks).get(talk), marks(2)[talk]);
  assert.deepEqual([...Texts.of(loaded!.pins.principals).names()].sort(), ["ada", "bob", "eve"]);
  assert.deepEqual(await third.loadHandled(), [message]);
  assert.equal(await postgresStore(db, "audit").load(), null);
  await db.end();
});

test("a save whose answer is lost holds nothing up", async () => {
  const db = new pg.Pool({ connectionString: await database("lost"), max: 2 });
  let isDeaf = false;
  const deaf = {
    query: async (statement: string, parameters: unknown[]) => {
      const answer = await db.query(statement, parameters);
      if (isDeaf) throw new Error("the connection is lost");
      return answer;
    },
  };
  const store = postgresStore(deaf, "replies");
  await store.load();
  const trust = { pins: pinned("ada"), marks: { [talk]: { epoch: 1, time: 7 } } };
  isDeaf = true;
  await assert.rejects(store.save(trust), /lost/);
  isDeaf = false;
  // The process cannot know that it was its own change.
  await assert.rejects(store.save(trust), StoreChanged);
  const { pins, marks } = await store.news(null);
  assert.deepEqual([Object.keys(pins), marks], [["ada"], trust.marks]);
  await store.save(trust);
  assert.deepEqual((await store.news(talk)).pins, {});
  await db.end();
});

test("what commits late is news, and news that could not be read come again", async () => {
  const url = await database("late");
  const slow = new pg.Client({ connectionString: url });
  const db = new pg.Pool({ connectionString: url, max: 2 });
  await slow.connect();
  let isAway = false;
  const breaking = {
    query: (statement: string, parameters: unknown[]) => {
      if (isAway && statement.includes("union all")) throw new Error("the database is away");
      return db.query(statement, parameters);
    },
  };
  const [late, prompt, reader] = [slow, db, breaking].map((each) => postgresStore(each, "replies")) as [
    SharedStore,
    SharedStore,
    SharedStore,
  ];
  for (const store of [late, prompt, reader]) await store.load();
  await slow.query("begin");
  await late.save({ pins: pinned("ada"), marks: {} });
  await prompt.save({ pins: pinned("bob"), marks: {} });
  assert.deepEqual(Object.keys((await reader.news(null)).pins), ["bob"]);
  await slow.query("commit");
  isAway = true;
  await assert.rejects(reader.news(talk));
  isAway = false;
  const news = await reader.news(talk);
  assert.deepEqual([Object.keys(news.pins), news.cameBack], [["ada"], true]);
  // What was read is no surprise at the next save.
  await reader.save({ pins: pinned("ada", "bob"), marks: {} });
  await slow.end();
  await db.end();
});

const talk = newUlid();
const sender = { type: "user", id: newUlid() } as const;

function pinned(...names: string[]): StoredTrust["pins"] {
  const stored = { speaks: true, linked: null, keys: [] };
  return { principals: Object.fromEntries(names.map((name) => [name, stored])) };
}

test("a store of one process is refused", async () => {
  const ada = await cluster.user("ada");
  const options = await cluster.agent("alone", ada.client);
  const pins = filePins(`${tmpdir()}/never-written`);
  for (const each of [pins, "never-written", undefined]) {
    await assert.rejects(new Agent({ ...options, pins: each }).run({ shared: true }), UsageError);
  }
});

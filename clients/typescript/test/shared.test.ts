// Several processes of one agent share its conversations.
import assert from "node:assert/strict";
import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { tmpdir } from "node:os";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import {
  Agent,
  type AgentOptions,
  type EpochMarks,
  type Handled,
  type News,
  type SharedStore,
  StoreChanged,
  type StoredTrust,
  UsageError,
  filePins,
} from "@blindpipe/client/agent";
import { type DevCluster, devCluster } from "@blindpipe/client/testing";
import { hex } from "@blindpipe/client/e2ee";
import type { FromChild, StoreCall, ToChild } from "./sharer.js";
import { texts } from "./support.js";

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

type Entry = StoredTrust["pins"]["principals"][string] | EpochMarks;

/** A store of several processes, in the memory of one that does not die. */
class Store {
  readonly #entries = new Map<string, { entry: Entry; version: number; by: number }>();
  readonly #handled: { each: Handled; by: number }[] = [];
  readonly #owners = new Map<string, number>();
  /** The place up to which each process has read. */
  readonly #seen = new Map<number, { version: number; handled: number }>();
  #version = 0;

  answer(by: number, call: StoreCall): { answer: unknown; isChanged: boolean } {
    const seen = this.#seen.get(by) ?? { version: 0, handled: 0 };
    this.#seen.set(by, seen);
    const told = (answer: unknown = null): { answer: unknown; isChanged: boolean } => ({
      answer,
      isChanged: false,
    });
    switch (call.name) {
      case "load": {
        const { pins, marks } = this.#news(by, 0, null);
        return told(this.#version === 0 ? null : { pins: { principals: pins }, marks });
      }
      case "loadHandled":
        seen.handled = this.#handled.length;
        return told(this.#handled.map(({ each }) => each));
      case "addHandled":
        this.#handled.push(...call.handled.map((each) => ({ each, by })));
        return told();
      case "news":
        return told(this.#news(by, seen.version, call.conversationId));
      case "save": {
        const sections = { pins: call.trust.pins.principals, marks: call.trust.marks };
        const entries = Object.entries(sections).flatMap(([section, all]) =>
          Object.entries(all).map(([name, entry]) => [`${section} ${name}`, entry as Entry] as const),
        );
        const isChanged = entries.some(([name]) => {
          const before = this.#entries.get(name);
          return before !== undefined && before.by !== by && before.version > seen.version;
        });
        if (isChanged) return { answer: null, isChanged };
        this.#version += 1;
        for (const [name, entry] of entries)
          this.#entries.set(name, { entry, version: this.#version, by });
        return told();
      }
    }
  }

  #news(by: number, since: number, conversationId: string | null): News {
    const found = { pins: {}, marks: {} } as Record<string, Record<string, Entry>>;
    for (const [place, { entry, version, by: other }] of this.#entries) {
      const [section, name] = place.split(" ") as [string, string];
      if (version > since && other !== by) found[section]![name] = entry;
    }
    const seen = this.#seen.get(by)!;
    const handled = this.#handled.slice(seen.handled).filter((each) => each.by !== by);
    [seen.version, seen.handled] = [this.#version, this.#handled.length];
    const cameBack = conversationId !== null && this.#owners.get(conversationId) !== by;
    if (conversationId !== null) this.#owners.set(conversationId, by);
    const { pins, marks } = found;
    return { pins, marks, handled: handled.map(({ each }) => each), cameBack } as unknown as News;
  }
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
  const store = new Store();
  const turns = new Map<string, Turn[]>();
  let clock = 0;
  const start = (node: number): ChildProcess => {
    const child = fork(fileURLToPath(new URL("sharer.js", import.meta.url)), {
      env: environment({ ...options, url: cluster.nodes[node]! }),
    });
    const by = child.pid!;
    child.on("message", (message: FromChild) => {
      if (message.type === "call") {
        const told: ToChild = { ref: message.ref, ...store.answer(by, message.call) };
        if (child.connected) child.send(told);
        return;
      }
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
  const all = new Store();
  const process = (by: number): Agent => {
    const ask = async <T>(call: StoreCall): Promise<T> => {
      const { answer, isChanged } = all.answer(by, call);
      if (isChanged) throw new StoreChanged();
      return answer as T;
    };
    const store: SharedStore = {
      load: () => ask({ name: "load" }),
      save: (trust) => ask({ name: "save", trust }),
      loadHandled: () => ask({ name: "loadHandled" }),
      addHandled: (handled) => ask({ name: "addHandled", handled }),
      news: (conversationId) => ask<News>({ name: "news", conversationId }),
    };
    return new Agent({ ...options, pins: store });
  };
  const [one, other] = [process(1), process(2)];
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
});

test("a store of one process is refused", async () => {
  const ada = await cluster.user("ada");
  const options = await cluster.agent("alone", ada.client);
  const pins = filePins(`${tmpdir()}/never-written`);
  for (const each of [pins, "never-written", undefined]) {
    await assert.rejects(new Agent({ ...options, pins: each }).run({ shared: true }), UsageError);
  }
});

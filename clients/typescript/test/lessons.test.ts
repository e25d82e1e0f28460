// The lessons of an event are kept before the event is acknowledged.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdtemp, open, readFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, mock, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { Agent, type AgentOptions } from "@blindpipe/client/agent";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { filePins } from "#dist/stores/pin-store.js";
import { Proxy } from "./proxy.js";
import { running, until } from "./support.js";

type PinStore = Exclude<AgentOptions["pins"], string | undefined>;
type StoredTrust = Parameters<PinStore["save"]>[0];

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

/** Longer than the time after which a handled event is acknowledged. */
const SAVE_MS = 300;

/** A slow store, which fails some times at first. */
class Store implements PinStore {
  kept: StoredTrust | null = null;
  saves = 0;
  #left: number;

  constructor(failures: number) {
    this.#left = failures;
  }

  async load(): Promise<null> {
    return null;
  }

  async save(trust: StoredTrust): Promise<void> {
    this.saves += 1;
    const state = structuredClone(trust);
    await pause(SAVE_MS);
    if (this.#left-- > 0) throw new Error("the disk is full");
    this.kept = { ...state, marks: { ...this.kept?.marks, ...state.marks } };
  }
}

function seqOf(cursor: string): number {
  return Number(cursor.split("-")[1]);
}

for (const transport of ["socket", "poll"] as const) {
  test(`by ${transport} an epoch is kept before its event is acknowledged`, async (t) => {
    const made = await cluster.agent("careful", ada.client);
    const conversation = await ada.client.openAgent(made.agentId);
    const proxy = await Proxy.start(made.url);
    t.after(() => proxy.close());
    const store = new Store(1);
    /** The event that teaches each epoch, and the epochs kept when it was acknowledged. */
    const lessons: { epoch: number; seq: number; kept: number | null }[] = [];
    const learn = (events: readonly { event: string; cursor: string }[]): void => {
      for (const { event, cursor } of events) {
        const epoch = lessons.length + 1;
        const isLesson = event === (epoch === 1 ? "message.created" : "key.rotated");
        const seq = seqOf(cursor);
        if (isLesson && !lessons.some((each) => each.seq >= seq))
          lessons.push({ epoch, seq, kept: null });
      }
    };
    const acknowledged = (seq: number): void => {
      const kept = store.kept?.marks[conversation.id]?.epoch ?? 0;
      for (const lesson of lessons) if (lesson.seq <= seq) lesson.kept ??= kept;
    };
    proxy.onFrame = (frame) => {
      if (frame.type === "event") learn([frame as never]);
      return [frame];
    };
    proxy.onClientFrame = (frame) => {
      if (frame.type === "ack") acknowledged(seqOf(frame.cursor));
      return frame;
    };
    proxy.before = ({ path, body }) => {
      const cursor = /\/messages\/poll\?.*cursor=(\d+-\d+)/.exec(path)?.[1];
      if (cursor) acknowledged(seqOf(cursor));
      if (path.endsWith("/ack")) acknowledged(Number(body.cursor.split("-").at(-1)));
      return undefined;
    };
    proxy.onAnswer = ({ path }, { body }) => {
      if (path.includes("/messages/poll?") && Array.isArray(body.data)) learn(body.data);
      return undefined;
    };
    const agent = new Agent({ ...made, url: proxy.url, pins: store }).on("message", () => {});
    await running(
      agent,
      async () => {
        await conversation.send("one");
        await until(() => typeof lessons[0]?.kept === "number", 20_000);
        await conversation.rotate();
        await until(() => typeof lessons[1]?.kept === "number", 20_000);
      },
      { transport },
    );
    const early = lessons.filter(({ epoch, kept }) => kept! < epoch);
    assert.deepEqual(early, []);
  });
}

test("a backlog of lessons is kept together", async (t) => {
  // A conversation has six rotations an hour, and its first message makes one.
  const lessons = 5;
  const made = await cluster.agent("thrifty", ada.client);
  const conversation = await ada.client.openAgent(made.agentId);
  const proxy = await Proxy.start(made.url);
  t.after(() => proxy.close());
  const store = new Store(0);
  const isKept = (epoch: number): boolean =>
    (store.kept?.marks[conversation.id]?.epoch ?? 0) >= epoch;
  const held: unknown[] = [];
  const agent = new Agent({ ...made, url: proxy.url, pins: store }).on("message", () => {});
  await running(agent, async () => {
    await conversation.send("one");
    await until(() => isKept(1));
    const before = store.saves;
    proxy.onFrame = (frame) => {
      if (frame.event !== "key.rotated") return [frame];
      held.push(frame);
      return held.length === lessons ? held : [];
    };
    for (let epoch = 0; epoch < lessons; epoch++) await conversation.rotate();
    await until(() => isKept(1 + lessons), 20_000);
    const saves = store.saves - before;
    assert(saves < lessons, `${saves} saves`);
  });
});

test("a file of pins is on the disk, and so is its name", async () => {
  const path = join(await mkdtemp(join(tmpdir(), "pins-")), "pins.json");
  const some = await open(tmpdir(), "r");
  await some.close();
  const prototype = Object.getPrototypeOf(some) as { sync(): Promise<void> };
  const synced: [isFolder: boolean, hasName: boolean][] = [];
  const { sync } = prototype;
  const spy = mock.method(prototype, "sync", async function (this: typeof some) {
    synced.push([(await this.stat()).isDirectory(), existsSync(path)]);
    return sync.call(this);
  });
  const trust = { pins: { principals: {} }, marks: { a: { epoch: 1, time: 2 } } };
  try {
    await filePins(path).save(trust);
  } finally {
    spy.mock.restore();
  }
  assert.match(await readFile(path, "utf8"), /^[0-9a-f]{8} marks a \{"epoch":1,"time":2\}\n$/);
  // The file, then the folder that has its name.
  assert.deepEqual(synced, [
    [false, true],
    [true, true],
  ]);
});

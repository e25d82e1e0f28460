// A person's process that is killed with `kill -9` during a talk, again and again.
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Agent } from "@blindpipe/client/agent";
import { Client, type Conversation, type ToolRequest, fileStore } from "@blindpipe/client";
import { devCluster, type DevCluster } from "@blindpipe/client/testing";
import { Proxy } from "./proxy.js";
import { MANIFEST, SCOPE, TOOLS, decideUntilAnswered, grant, running, texts, until } from "./support.js";

/** `KILLS=200` for the long form. */
const KILLS = Number(process.env["KILLS"] ?? 10);
/** A person may send ten messages a second. */
const BETWEEN_SENDS_MS = 150;
/** A life that talks has stored some of what it has shown, and dies before the rest. */
const MAX_TALK_MS = 600;
const SETTLE_MS = 40_000;
const PROGRAM = fileURLToPath(new URL("person.js", import.meta.url));

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

/** A life of the person's program. */
class Life {
  /** The ids of the messages that it has shown, in their order. */
  readonly ids: string[] = [];
  readonly texts: string[] = [];
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown>;

  constructor(url: string, path: string) {
    this.#child = spawn(process.execPath, [PROGRAM, url, path], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    const lines = createInterface({ input: this.#child.stdout! });
    lines.on("line", (line) => {
      const [id, text] = line.split(" ");
      this.ids.push(id!);
      this.texts.push(text!);
    });
    this.#ended = Promise.all([once(this.#child, "exit"), once(lines, "close")]);
  }

  hasShown(): Promise<unknown> {
    return until(() => this.ids.length > 0, SETTLE_MS);
  }

  async kill(): Promise<void> {
    assert.equal(this.#child.exitCode, null, "the program has ended by itself");
    this.end();
    await this.#ended;
  }

  end(): void {
    this.#child.kill("SIGKILL");
  }
}

/** The messages that the program's store has as shown. */
async function stored(path: string): Promise<ReadonlySet<string>> {
  const handled = await fileStore(path).loadHandled();
  return new Set([...handled].map((each) => each.clientMessageId));
}

async function seen(talk: Conversation): Promise<unknown[]> {
  return (await texts(talk)).filter((text) => String(text).startsWith("seen "));
}

function shuffled(count: number): number[] {
  const places = [...Array(count).keys()].map((place) => [Math.random(), place] as const);
  return places.sort(([a], [b]) => a - b).map(([, place]) => place);
}

test("a person whose program is killed again and again loses no message, and shows none twice", async (t) => {
  const path = join(await mkdtemp(join(tmpdir(), "killed-")), "ada");
  let [isOver, losesAcks] = [false, false];
  const proxy = await Proxy.start(cluster.nodes[0]!);
  const lives: Life[] = [];
  t.after(() => {
    isOver = true;
    for (const life of lives) life.end();
    proxy.close();
  });
  const options = { url: proxy.url, store: fileStore(path), tools: TOOLS };
  const [ada, bob] = await Promise.all([cluster.user("ada", options), cluster.user("bob")]);
  const talk = await bob.client.openDirect(ada.client.userId);

  // The person lets a tool run unasked.
  const made = await cluster.agent("caller", ada.client, MANIFEST);
  const agent = (): Agent =>
    new Agent(made).on("message", async (ctx) => {
      const { status } = await ctx.call({ tool: "send_email", scope: SCOPE, arguments: {} });
      await ctx.reply(status);
    });
  const withAgent = await ada.client.openAgent(made.agentId);
  const decided: unknown[] = [];
  const remember = async (request: ToolRequest): Promise<void> => {
    decided.push(await request.decide());
    if (decided.at(-1) === "ask") await request.remember({ days: 30 });
    await request.execute(() => "sent");
  };
  await running(agent(), async () => {
    await grant(made, ada, withAgent);
    await decideUntilAnswered(ada, () => withAgent.send("mail"), remember);
  });
  const marks = [...ada.client.session.marks().keys()];
  assert(marks.includes(withAgent.id));

  const acks: string[] = [];
  proxy.onClientFrame = (frame) => {
    if (frame.type !== "ack") return frame;
    acks.push(frame.cursor);
    return { ...frame, cursor: losesAcks ? acks[0] : acks.at(-1) };
  };
  const sent: string[] = [];
  const saying = (async () => {
    for (; !isOver; await pause(BETWEEN_SENDS_MS)) {
      await talk.send(String(sent.length));
      sent.push(String(sent.length));
    }
  })();
  const begun = Date.now();
  const first = new Life(proxy.url, path);
  lives.push(first);
  await first.hasShown();
  const startMs = Date.now() - begun;
  await first.kill();
  // Half of them die in their start, evenly spread over it, and half while they talk.
  for (const place of shuffled(KILLS)) {
    const before = await stored(path);
    // The service sends all again that it did not hear of, also what the store has.
    losesAcks = place % 4 < 2;
    const life = new Life(proxy.url, path);
    lives.push(life);
    if (place % 2 === 1) await pause((place * startMs) / KILLS);
    else {
      await life.hasShown();
      await pause(Math.random() * MAX_TALK_MS);
    }
    await life.kill();
    const again = life.ids.filter((id) => before.has(id));
    assert.deepEqual(again, [], "a message that was stored is shown again");
  }
  [isOver, losesAcks] = [true, false];
  await saying;

  const before = await stored(path);
  assert(before.size > 0, "the lives that talked have stored something");
  const last = new Life(proxy.url, path);
  lives.push(last);
  const wanted = sent.map((text) => `seen ${text}`);
  await until(async () => (await seen(talk)).length >= wanted.length, SETTLE_MS);
  await last.kill();
  assert.deepEqual(last.ids.filter((id) => before.has(id)), []);
  assert.deepEqual(await seen(talk), wanted);
  for (const life of lives) {
    const numbers = life.texts.map(Number);
    assert.deepEqual(numbers, [...new Set(numbers)].sort((a, b) => a - b));
  }
  assert.deepEqual(new Set(lives.flatMap((life) => life.texts)), new Set(sent));

  // Marks and consents are still there.
  const client = await Client.resume({ ...options, store: fileStore(path) });
  const kept = [...client.session.marks()];
  for (const id of [...marks, talk.id]) {
    const found = kept.find(([name]) => name.toLowerCase() === id.toLowerCase());
    assert((found?.[1].epoch ?? 0) > 0, `the marks of ${id}`);
  }
  const again = client.conversation(withAgent.id);
  await running(agent(), async () => {
    await decideUntilAnswered({ ...ada, client }, () => again.send("mail"), remember);
  });
  assert.deepEqual(decided, ["ask", "execute"]);
});

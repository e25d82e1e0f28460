// The programs of the README, word for word, behind a server that lies, repeats, reorders and drops.
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import type { Conversation } from "@blindpipe/client";
import { newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster } from "@blindpipe/client/testing";
import { changed, flipped, isMessage } from "./attacks.js";
import { Proxy, type Value } from "./proxy.js";
import { texts, until } from "./support.js";

const PACKAGE = new URL("../../", import.meta.url).pathname;
const README = readFileSync(`${PACKAGE}README.md`, "utf8");
const BLOCKS = [...README.matchAll(/```ts\n(.*?)```/gs)].map((found) => found[1]!);

/** The developer's own part of the README's agent. */
const MODEL = `
async function* model(text) {
  yield "You said: ";
  yield text;
}
`;
/** The person's own part: what is typed is sent. */
const PERSON = `
import { createInterface } from "node:readline";
const { url, email, password, protectionPassword, agentId } = JSON.parse(process.env.PERSON);
const turnstileToken = "dev-pass";
const post = () => console.log("a tool has run");
createInterface({ input: process.stdin }).on("line", (text) => conversation.send(text));
`;

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

/** The message of an event, altered in each part that says who said what to whom. */
function lies(frame: Value): Value[] {
  const stranger = newUlid();
  const fields = [
    { payload: flipped(frame.data.payload) },
    { payload: { type: "text", text: "in clear" } },
    { client_message_id: stranger },
    { conversation_id: stranger },
    { sender: { ...frame.data.sender, id: stranger } },
  ];
  return fields.map((each) => ({ ...changed(frame, each), event_id: newUlid() }));
}

/** Lies before each message, tells it twice, drops the first telling, and exchanges two. */
class Liar {
  exchanges = false;
  drops = false;
  #held: Value | null = null;
  readonly #dropped = new Set<string>();
  /** The last message that the node told. */
  last: Value = null;

  constructor(readonly proxy: Proxy) {
    proxy.onFrame = (frame) => this.#told(frame);
  }

  #told(frame: Value): readonly Value[] {
    if (!isMessage(frame)) return [frame];
    this.last = frame;
    if (this.drops && !this.#dropped.has(frame.event_id)) {
      this.#dropped.add(frame.event_id);
      return [];
    }
    if (this.exchanges && !this.#held) {
      this.#held = frame;
      return [];
    }
    const all = [frame, ...(this.#held ? [this.#held] : [])];
    this.#held = null;
    return all.flatMap((one) => [...lies(one), one, { ...one, event_id: newUlid() }]);
  }

  static async before(url: string): Promise<Liar> {
    return new Liar(await Proxy.start(url));
  }
}

/** A program of the README, with the part that its developer adds. */
function started(name: string, source: string, environment: object): ChildProcess {
  const folder = `${PACKAGE}build/readme`;
  mkdirSync(folder, { recursive: true });
  const path = join(folder, `${name}.mjs`);
  writeFileSync(path, source);
  const env = { ...process.env, ...environment };
  return spawn(process.execPath, [path], { stdio: ["pipe", "pipe", "inherit"], env });
}

/** The agent's answers, once there are enough. */
async function answers(conversation: Conversation, said: readonly string[]): Promise<string[]> {
  const found = async (): Promise<string[]> =>
    (await texts(conversation)).map(String).filter((text) => !said.includes(text));
  await until(async () => (await found()).length >= said.length, 20_000);
  return found();
}

test("the programs of the README behind an active server", async () => {
  const user = await cluster.user("reader");
  const { agentId, token, key } = await cluster.agent("of the readme", user.client);
  const [person, agent] = await Promise.all(cluster.nodes.slice(0, 2).map(Liar.before));
  const pins = join(await mkdtemp(join(tmpdir(), "pins-")), "pins");
  const agents = started("agent", MODEL + BLOCKS[0]!, {
    BLINDPIPE_URL: agent!.proxy.url,
    BLINDPIPE_AGENT_ID: agentId,
    BLINDPIPE_TOKEN: token,
    BLINDPIPE_KEY: String(key),
    BLINDPIPE_PINS: pins,
  });
  const path = `/agents/${agentId}`;
  await until(async () => {
    const shown = await user.client.account.http.data<{ connections: unknown[] }>({ method: "GET", path });
    return shown.connections.length > 0;
  }, 20_000);
  const { email, password, protectionPassword } = user;
  const given = { url: person!.proxy.url, email, password, protectionPassword, agentId };
  const source = PERSON + BLOCKS.find((block) => block.includes("Client.login"))!;
  const people = started("person", source, { PERSON: JSON.stringify(given) });
  const printed: string[] = [];
  const refused: string[] = [];
  createInterface({ input: people.stdout! }).on("line", (line) => {
    (line.startsWith("(") ? refused : printed).push(line);
  });
  const said = ["Hello"];
  const say = (...all: string[]): void => {
    for (const text of all) people.stdin!.write(`${text}\n`);
    said.push(...all);
  };
  try {
    const arePrinted = (count: number): Promise<unknown> =>
      until(() => printed.length === count, 20_000);
    await arePrinted(1);
    say("one");
    await arePrinted(2);
    agent!.exchanges = true;
    say("two", "three");
    await arePrinted(4);
    agent!.exchanges = false;
    // A dropped event comes again after the next connection.
    person!.drops = agent!.drops = true;
    const conversation = await user.client.openAgent(agentId);
    for (const text of ["four", "five"]) {
      say(text);
      await pause(300);
      agent!.proxy.cut();
      await answers(conversation, said);
      await pause(100);
      person!.proxy.cut();
      await arePrinted(said.length);
      // An invented wish runs nothing and ends nothing.
      const { data, created_at } = person!.last;
      const { payload, conversation_id, sender } = data;
      const wish = { agent_id: agentId, user_id: sender.id, conversation_id, created_at, payload };
      const tool = { tool: "send_email", scope: "notification:send", sensitivity: "low" };
      const call = { request_id: newUlid(), ...wish, ...tool };
      const event = { event_id: newUlid(), event: "artifact_request", data: call };
      person!.proxy.say({ ...person!.last, ...event });
    }
    const wanted = said.map((text) => `You said: ${text}`).sort();
    assert.deepEqual([...printed].sort(), wanted);
    assert.deepEqual((await answers(conversation, said)).sort(), wanted);
    for (const reason of ["clear", "bad_ciphertext", "malformed"]) {
      assert(refused.includes(`(${reason})`), reason);
    }
    assert.deepEqual([people.exitCode, agents.exitCode], [null, null]);
  } finally {
    for (const child of [people, agents]) child.kill("SIGKILL");
    for (const liar of [person!, agent!]) liar.proxy.close();
    rmSync(`${PACKAGE}build/readme`, { recursive: true, force: true });
  }
});

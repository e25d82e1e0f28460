// The programs of the README, word for word, behind a server that lies, repeats, reorders and drops.
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import type { Conversation } from "@blindpipe/client";
import type { AgentOptions } from "@blindpipe/client/agent";
import { newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { again, changed, flipped, isMessage } from "./attacks.js";
import { Proxy, type Value } from "./proxy.js";
import { texts, until } from "./support.js";

const PACKAGE = new URL("../../", import.meta.url).pathname;
const README = readFileSync(`${PACKAGE}README.md`, "utf8");
const BLOCKS = [...README.matchAll(/```ts\n(.*?)```/gs)].map((found) => found[1]!);
/** Programs that are written here find the package. */
const FOLDER = `${PACKAGE}build/readme`;

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

/** Outages and deaths by turns, of an agent with a pin store and one without; five messages each. */
const ROUNDS = { pinning: 6, forgetful: 2 };
/** A person may send ten messages a second. */
const BETWEEN_SENDS_MS = 110;

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(async () => {
  rmSync(FOLDER, { recursive: true, force: true });
  await cluster?.stop();
});

/** The message of an event, altered in each part that says who said what to whom. */
function lies(frame: Value, later: number): Value[] {
  const stranger = newUlid();
  const fields = [
    { payload: flipped(frame.data.payload) },
    { payload: { type: "text", text: "in clear" } },
    { client_message_id: stranger },
    { conversation_id: stranger },
    { sender: { ...frame.data.sender, id: stranger } },
  ];
  return fields.map((each) => again(changed(frame, each), later));
}

/** Lies before each message, tells it twice, drops the first telling, and exchanges two. */
class Liar {
  exchanges = false;
  drops = false;
  /** The place of a lie, after its message's. */
  later = 0;
  /** The messages that the node told. */
  told = 0;
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
    this.told += 1;
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
    return all.flatMap((one) => [...lies(one, this.later), one, again(one, 0)]);
  }

  static async before(url: string): Promise<Liar> {
    return new Liar(await Proxy.start(url));
  }
}

/** A program of the README, with the part that its developer adds. */
function started(name: string, source: string, environment: object): ChildProcess {
  mkdirSync(FOLDER, { recursive: true });
  const path = join(FOLDER, `${name}.mjs`);
  writeFileSync(path, source);
  const env = { ...process.env, ...environment };
  return spawn(process.execPath, [path], { stdio: ["pipe", "pipe", "inherit"], env });
}

/** The README's agent, which answers whoever writes to it. */
function startedAgent(
  name: string,
  { agentId, token, key }: Pick<AgentOptions, "agentId" | "token" | "key">,
  url: string,
  pins: string | null,
): ChildProcess {
  return started(name, MODEL + BLOCKS[0]!, {
    BLINDPIPE_URL: url,
    BLINDPIPE_AGENT_ID: agentId,
    BLINDPIPE_TOKEN: token,
    BLINDPIPE_KEY: String(key),
    ...(pins === null ? {} : { BLINDPIPE_PINS: pins }),
  });
}

async function online(user: TestUser, agentId: string): Promise<void> {
  const path = `/agents/${agentId}`;
  await until(async () => {
    const shown = await user.client.account.http.data<{ connections: unknown[] }>({ method: "GET", path });
    return shown.connections.length > 0;
  }, 20_000);
}

/** The README's person: what it prints, and in brackets why something was not said. */
function startedPerson(
  name: string,
  user: TestUser,
  url: string,
  agentId: string,
): { child: ChildProcess; printed: string[]; refused: string[] } {
  const { email, password, protectionPassword } = user;
  const given = { url, email, password, protectionPassword, agentId };
  const source = PERSON + BLOCKS.find((block) => block.includes("Client.login"))!;
  const child = started(name, source, { PERSON: JSON.stringify(given) });
  const printed: string[] = [];
  const refused: string[] = [];
  createInterface({ input: child.stdout! }).on("line", (line) => {
    (line.startsWith("(") ? refused : printed).push(line);
  });
  return { child, printed, refused };
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
  const options = { agentId, token, key };
  const agents = startedAgent("agent", options, agent!.proxy.url, pins);
  await online(user, agentId);
  const people = startedPerson("person", user, person!.proxy.url, agentId);
  const { printed, refused } = people;
  const said = ["Hello"];
  const say = (...all: string[]): void => {
    for (const text of all) people.child.stdin!.write(`${text}\n`);
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
    assert.deepEqual([people.child.exitCode, agents.exitCode], [null, null]);
  } finally {
    for (const child of [people.child, agents]) child.kill("SIGKILL");
    for (const liar of [person!, agent!]) liar.proxy.close();
  }
});

/** Ends a process by SIGKILL. It must have lived until now. */
async function killed(child: ChildProcess): Promise<void> {
  const ended = once(child, "exit");
  assert(child.exitCode === null && child.kill("SIGKILL"), "it ended by itself");
  assert.deepEqual(await ended, [null, "SIGKILL"]);
}

/** Outages and deaths of an agent while a person writes, behind a server that lies to both. */
async function mortalLane(lane: keyof typeof ROUNDS): Promise<void> {
  const user = await cluster.user("reader");
  const options = await cluster.agent("of the readme", user.client);
  const { agentId } = options;
  const [beforePerson, beforeAgent] = await Promise.all(cluster.nodes.slice(0, 2).map(Liar.before));
  const [person, agent] = [beforePerson!, beforeAgent!];
  // A victim that handles a lie in a message's own place acknowledges the message by that.
  person.later = agent.later = -1;
  const pins =
    lane === "pinning" ? join(await mkdtemp(join(tmpdir(), "pins-")), "pins") : null;
  const start = (): ChildProcess => startedAgent(`${lane}-agent`, options, agent.proxy.url, pins);
  let mortal = start();
  await online(user, agentId);
  const { child, printed, refused } = startedPerson(`${lane}-person`, user, person.proxy.url, agentId);
  const said = ["Hello"];
  const say = async (count: number): Promise<void> => {
    for (let n = 0; n < count; n++) {
      const text = `message ${said.length}`;
      child.stdin!.write(`${text}\n`);
      said.push(text);
      await pause(BETWEEN_SENDS_MS);
    }
  };
  try {
    await until(() => printed.length === 1, 20_000);
    for (let round = 0; round < ROUNDS[lane]; round++) {
      const isDeath = round % 2 === 1;
      const { told } = agent;
      await say(1);
      if (isDeath) {
        await until(() => agent.told > told, 20_000);
        await killed(mortal);
      } else {
        agent.proxy.isAway = true;
        agent.proxy.cut();
        person.proxy.cut();
      }
      await say(3);
      if (isDeath) mortal = start();
      agent.proxy.isAway = false;
      await say(1);
      await until(() => agent.proxy.isConnected, 20_000);
    }
    await until(() => printed.length >= said.length, 20_000);
    const wanted = said.map((text) => `You said: ${text}`);
    assert.deepEqual(printed, wanted);
    assert.deepEqual(await answers(await user.client.openAgent(agentId), said), wanted);
    for (const reason of ["clear", "bad_ciphertext", "malformed"]) {
      assert(refused.includes(`(${reason})`), reason);
    }
    await killed(mortal);
    await killed(child);
  } finally {
    for (const each of [mortal, child]) each.kill("SIGKILL");
    for (const each of [person, agent]) each.proxy.close();
  }
}

test("the README's agent dies, loses its server, and answers each message once", async () => {
  await Promise.all([mortalLane("pinning"), mortalLane("forgetful")]);
});

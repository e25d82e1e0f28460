// A person's store: all that survives a restart, in files for their owner alone.
import assert from "node:assert/strict";
import { mkdtemp, readFile, stat, symlink, unlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import {
  Client,
  type ClientEvent,
  type ClientOptions,
  type FileStore,
  type StoredSession,
  UsageError,
  fileStore as publicStore,
} from "@blindpipe/client";
import { Agent } from "@blindpipe/client/agent";
import { type EpochMarks, Trust, newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { fileStore } from "#dist/stores/file-store.js";
import { Victim, again, isMessage } from "./attacks.js";
import { Proxy, type Value } from "./proxy.js";
import { SCOPE, TOOLS, decideUntilAnswered, grant, running, until } from "./support.js";

const OWNER = { userId: newUlid(), deviceId: "laptop" };
const DAY_MS = 24 * 3_600_000;
const NO_PINS = { principals: {} };

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

async function newPath(): Promise<string> {
  return join(await mkdtemp(join(tmpdir(), "person-")), "person");
}

async function epochsOf(path: string): Promise<Record<string, number>> {
  const { marks } = (await fileStore(path).load(OWNER))!;
  const kept = marks as { names(): Iterable<string>; get(name: string): EpochMarks };
  return Object.fromEntries([...kept.names()].map((name) => [name, kept.get(name).epoch]));
}

test("files of a person are for their owner alone", async () => {
  const path = await newPath();
  const store = fileStore(path);
  assert.equal(await store.loadDevice(), null);
  assert.equal(await store.load(OWNER), null);
  const session = { ...OWNER, cookie: "refresh_token=1" };
  await store.saveDevice({ session, keys: null });
  await store.save({ pins: NO_PINS, marks: { a: { epoch: 1, time: 1 } } });
  const shown = { at: Date.now(), conversationId: newUlid(), clientMessageId: newUlid() };
  await store.addHandled([{ ...shown, sender: { type: "user", id: newUlid() } }]);
  const files = [path, `${path}.learned`, `${path}.handled`];
  for (const file of files) assert.equal((await stat(file)).mode & 0o777, 0o600, file);
  const next = fileStore(path);
  assert.deepEqual((await next.loadDevice())?.session, session);
  assert.deepEqual(await epochsOf(path), { a: 1 });
  assert.equal([...(await next.loadHandled())].length, 1);
  await next.remove();
  for (const file of files) await assert.rejects(stat(file));
});

test("a person's store gives nothing to another person or device", async () => {
  const path = await newPath();
  await fileStore(path).load(OWNER);
  for (const other of [{ userId: newUlid() }, { deviceId: "phone" }]) {
    await assert.rejects(fileStore(path).load({ ...OWNER, ...other }), UsageError);
  }
});

test("a person's files are not written through a link", async () => {
  const path = await newPath();
  const other = await newPath();
  await writeFile(other, "somebody else's");
  for (const beside of [`${path}.learned`, `${path}.handled`, `${path}.${process.pid}.tmp`]) {
    await symlink(other, beside);
  }
  const store = fileStore(path);
  await assert.rejects(store.save({ pins: NO_PINS, marks: { a: { epoch: 1, time: 1 } } }));
  await assert.rejects(store.addHandled([]));
  await store.saveDevice({ session: { ...OWNER, cookie: null }, keys: null });
  assert.equal((await stat(path)).mode & 0o777, 0o600);
  assert.equal(await readFile(other, "utf8"), "somebody else's");
});

test("consents are added to the log, and a log is written anew before it is large", async () => {
  const path = await newPath();
  const store = fileStore(path, 4096);
  await store.load(OWNER);
  const remembered = { conversation: "01", agent: "02", tool: "mail", scope: "mail", until: 5 };
  // An agent chooses the id of its request.
  const names = ["01:plain", "02:with spaces\nand lines", '"quoted"', "\ud800"];
  const begun = Object.fromEntries(names.map((name) => [name, Date.now()]));
  await store.addConsents({ begun, remembered: { kept: remembered, gone: remembered } });
  await store.addConsents({ begun: {}, remembered: { gone: null } });
  await store.addConsents({ begun: { old: Date.now() - 32 * DAY_MS }, remembered: {} });
  const before = await readFile(`${path}.learned`, "utf8");
  await store.addConsents({ begun: { next: begun["01:plain"]! }, remembered: {} });
  const added = (await readFile(`${path}.learned`, "utf8")).slice(before.length);
  assert.match(added, /^[0-9a-f]{8} begun next \d+\n$/);
  const check = async (): Promise<void> => {
    const again = fileStore(path, 4096);
    await again.load(OWNER);
    const consents = (await again.loadConsents())!;
    assert.deepEqual(new Set(Object.keys(consents.begun)), new Set([...names, "next"]));
    assert.deepEqual(consents.remembered, { kept: remembered });
  };
  await check();
  for (let epoch = 0; epoch < 300; epoch++) {
    const marks = { [`m${epoch % 5}`]: { epoch, time: 1 } };
    // One change waits for the other, which may write the log anew.
    const both = [store.save({ pins: NO_PINS, marks }), store.addConsents({ begun, remembered: {} })];
    await Promise.all(both);
    assert((await stat(`${path}.learned`)).size < 8192);
  }
  await check();
  assert.deepEqual(await epochsOf(path), { m0: 295, m1: 296, m2: 297, m3: 298, m4: 299 });
  assert(!(await readFile(`${path}.learned`, "utf8")).includes(" gone "));
});

test("pins are read as they were kept", async () => {
  const path = await newPath();
  const trust = new Trust({ type: "user", id: OWNER.userId });
  trust.link({ type: "agent", id: newUlid() }, "00".repeat(16));
  await fileStore(path).save({ pins: trust.takeChanged().pins, marks: {} });
  const { pins } = (await fileStore(path).load(OWNER))!;
  assert.deepEqual(new Trust(trust.me, "tofu", [], pins).store(), trust.store());
});

/** The texts of the messages that come before the person has caught up, or up to `last`. */
async function heard(client: Client, last: string | null = null): Promise<string[]> {
  const texts: string[] = [];
  for await (const event of client.events()) {
    if (event.type === "message") texts.push(textOf(event));
    if (last === null ? event.type === "caught_up" : texts.at(-1) === last) {
      // The event is acknowledged when the next one is asked for.
      if (last === null) return texts;
      last = null;
    }
  }
  throw new Error("the events have ended");
}

function textOf(event: Extract<ClientEvent, { type: "message" }>): string {
  return String(event.opened?.content["text"] ?? event.fault?.reason);
}

interface Restarting {
  readonly path: string;
  readonly proxy: Proxy;
  readonly user: TestUser;
  readonly victim: Victim;
  /** The next run of the program, which has nothing but the files. */
  readonly next: (options?: Partial<ClientOptions>) => Promise<Client>;
}

async function restarting(
  options: Partial<ClientOptions>,
  during: (scene: Restarting) => Promise<void>,
  storeOf: (path: string) => FileStore = publicStore,
): Promise<void> {
  const path = await newPath();
  const proxy = await Proxy.start(cluster.nodes[0]!);
  const victim = new Victim();
  const given = { url: proxy.url, hooks: victim.hooks, ...options };
  const next = (more: Partial<ClientOptions> = {}): Promise<Client> =>
    Client.resume({ ...given, store: storeOf(path), ...more });
  try {
    const user = await cluster.user("restarter", { ...given, store: storeOf(path) });
    await during({ path, proxy, user, victim, next });
  } finally {
    proxy.close();
  }
}

test("a message that was shown before a restart is not shown again", async () => {
  await restarting({}, async ({ path, proxy, user, next }) => {
    let seen: Value = null;
    proxy.onFrame = (frame) => {
      if (isMessage(frame)) seen ??= frame;
      return [frame];
    };
    const conversation = await ada.client.openDirect(user.client.userId);
    await conversation.send("once");
    assert.deepEqual(await heard(user.client), ["once"]);
    await until(() => readFile(`${path}.handled`, "utf8").catch(() => ""));
    const client = await next();
    const texts: string[] = [];
    for await (const event of client.events()) {
      if (event.type === "message") texts.push(textOf(event));
      if (event.type === "caught_up") {
        // Its cursor is not that of the next message, which is not to be acknowledged.
        proxy.say(again(seen, 0));
        await conversation.send("and more");
      }
      if (!texts.includes("and more")) continue;
      // The rows of that moment do not name the message.
      const [key] = client.trust.keysOf(ada.client.self);
      client.verifyKey(ada.client.self, key!.keyId);
      const kept = `"key_id":"${key!.keyId}"`;
      const isKept = (line: string): boolean => line.includes(kept) && line.includes("verified");
      await until(async () => (await readFile(`${path}.learned`, "utf8")).split("\n").some(isKept));
      break;
    }
    assert.deepEqual(texts, ["and more"]);
    // The program broke off at the second message: it comes again, and the first one does not.
    assert.deepEqual(await heard(await next()), ["and more"]);
    assert.deepEqual(await heard(await next()), []);
  });
});

test("a person acknowledges no event whose lessons are not stored", async () => {
  let fails = false;
  let failures = 0;
  const moody = (path: string): FileStore => {
    const store = fileStore(path);
    const save = store.addHandled.bind(store);
    const addHandled: FileStore["addHandled"] = (handled) =>
      fails ? Promise.reject(new Error("the disk is full")) : save(handled);
    return { ...store, addHandled };
  };
  const hooks = { store_failed: (): void => void failures++ };
  const during = async ({ user, next }: Restarting): Promise<void> => {
    assert.deepEqual(await heard(user.client), []);
    const conversation = await ada.client.openDirect(user.client.userId);
    fails = true;
    for (const text of ["hello", "more"]) await conversation.send(text);
    // Messages are shown, and the failure is told.
    assert.deepEqual(await heard(user.client, "more"), ["hello", "more"]);
    assert(failures > 0);
    fails = false;
    // Both come again, because nothing of them was kept.
    assert.deepEqual(await heard(await next()), ["hello", "more"]);
    assert.deepEqual(await heard(await next()), []);
  };
  await restarting({ hooks }, during, moody);
});

test("a store that is mended is acknowledged to, without a further event", async () => {
  let fails = true;
  const moody = (path: string): FileStore => {
    const store = fileStore(path);
    const addHandled: FileStore["addHandled"] = async (handled) => {
      if (fails) throw new Error("the disk is full");
      await store.addHandled(handled);
    };
    return { ...store, addHandled };
  };
  const during = async ({ user, proxy }: Restarting): Promise<void> => {
    const conversation = await ada.client.openDirect(user.client.userId);
    await conversation.send("hello");
    let messageSeq = Infinity;
    const acknowledged: number[] = [];
    proxy.onFrame = (frame) => {
      if (isMessage(frame)) messageSeq = frame.seq;
      return [frame];
    };
    proxy.onClientFrame = (frame) => {
      if (frame.type === "ack") acknowledged.push(Number(String(frame.cursor).split("-")[1]));
      return frame;
    };
    const stop = new AbortController();
    const reading = (async () => {
      for await (const event of user.client.events({ signal: stop.signal })) {
        if (event.type === "caught_up") fails = false;
      }
    })();
    // A store that has failed is tried again after five seconds.
    await until(() => acknowledged.some((seq) => seq >= messageSeq), 15_000);
    stop.abort();
    await reading;
  };
  await restarting({}, during, moody);
});

test("what a person allowed for some days outlives a restart, and so does what began", async () => {
  let isFull = false;
  let failures = 0;
  const moody = (path: string): FileStore => {
    const store = fileStore(path);
    const addConsents: FileStore["addConsents"] = async (changed) => {
      if (isFull) throw new Error("the disk is full");
      await store.addConsents(changed);
    };
    return { ...store, addConsents };
  };
  const hooks = { store_failed: (): void => void failures++ };
  const during = async ({ path, proxy, user, next }: Restarting): Promise<void> => {
    const options = await cluster.agent("asker", user.client, {
      tools: [{ name: "send_email", scope: SCOPE }],
      permission_scopes: [{ scope: SCOPE, sensitivity: "low" }],
    });
    const agent = new Agent(options).on("message", async (ctx) => {
      const { status } = await ctx.call({ tool: "send_email", scope: SCOPE, arguments: {} });
      await ctx.reply(status);
    });
    const requests: Value[] = [];
    proxy.onFrame = (frame) => {
      if (frame.event === "artifact_request") requests.push(frame);
      return [frame];
    };
    await running(agent, async () => {
      const conversation = await user.client.openAgent(options.agentId);
      await grant(options, user, conversation);
      const decisions: string[] = [];
      await decideUntilAnswered(user, () => conversation.send("one"), async (request) => {
        decisions.push(await request.decide());
        await request.approve();
        isFull = true;
        let runs = 0;
        await assert.rejects(request.execute(() => runs++), /the disk is full/);
        assert.deepEqual([runs, failures], [0, 1], "nothing runs that is not noted before");
        isFull = false;
        await request.remember();
        await request.execute(() => runs++);
        assert.equal(runs, 1);
      });
      const log = await readFile(`${path}.learned`, "utf8");
      assert(log.includes(" begun ") && log.includes(" remembered "));
      const again_: TestUser = { ...user, client: await next() };
      const talk = again_.client.conversation(conversation.id);
      const act = async (): Promise<void> => {
        proxy.say(again(requests[0]));
        await talk.send("two");
      };
      await decideUntilAnswered(again_, act, async (request) => {
        decisions.push(await request.decide());
        await request.execute(() => "sent");
      });
      assert.deepEqual(decisions, ["ask", "repeated", "execute"]);
    });
  };
  await restarting({ tools: TOOLS, hooks }, during, moody);
});

test("a sign-in goes on with what its files have, and a second one has the same device", async () => {
  await restarting({}, async ({ user, next, path }) => {
    const { deviceId } = user.client.account;
    const conversation = await user.client.openDirect(ada.client.userId);
    await conversation.send("before");
    const offline = await Client.resumeOffline({ url: cluster.nodes[0]!, store: publicStore(path) });
    assert.equal(offline.account.deviceId, deviceId);
    // Each renewal is kept: the cookie of before serves no more.
    for (let run = 0; run < 3; run++) {
      let newest: StoredSession | null = null;
      const client = await next({ onSession: (session) => void (newest = session) });
      assert.deepEqual((await publicStore(path).loadDevice())?.session, newest);
      await client.conversation(conversation.id).send(`run ${run}`);
    }
    const { email, password } = user;
    const login = { email, password, turnstileToken: "dev-pass" };
    const url = cluster.nodes[0]!;
    const later = await Client.login({ url, ...login, store: publicStore(path) });
    assert.equal(later.account.deviceId, deviceId);
    await later.conversation(conversation.id).send("signed in again");
    await assert.rejects(
      Client.login({ url, ...login, deviceId: "another", store: publicStore(path) }),
      UsageError,
    );
    await later.conversation(conversation.id).send("and again");
    // Without its log, the sign-in alone says whose the store is.
    await unlink(`${path}.learned`);
    const kept = await readFile(path, "utf8");
    const another = { ...login, email: ada.email, password: ada.password };
    const stranger = Client.login({ url, ...another, deviceId, store: publicStore(path) });
    await assert.rejects(stranger, UsageError);
    assert.equal(await readFile(path, "utf8"), kept);
    const empty = { url, store: publicStore(await newPath()) };
    await assert.rejects(Client.resume(empty), { name: "Closed" });
    await assert.rejects(Client.resumeOffline(empty), { name: "Closed" });
  });
});

// A service that is away for a time costs nothing but the time.
import assert from "node:assert/strict";
import { after, before, mock, test } from "node:test";
import { Agent, Closed } from "@blindpipe/client/agent";
import type { ClientEvent } from "@blindpipe/client";
import { newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { again, attackedPerson, shown } from "./attacks.js";
import { type Answer, Proxy, type Request, type Value } from "./proxy.js";
import { answerTo, eventOf, running, signed, texts, until } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

/** Without jitter nobody waits. */
async function hasty(during: () => Promise<void>): Promise<void> {
  const random = mock.method(Math, "random", () => 0);
  try {
    await during();
  } finally {
    random.mock.restore();
  }
}

/** Refuses so many requests that fit; counts them. */
function away(
  proxy: Proxy,
  times: number,
  fits: (request: Request) => boolean,
  status = 503,
): { count: number } {
  const refused = { count: 0 };
  proxy.before = (request): Answer | undefined => {
    if (!fits(request) || refused.count >= times) return undefined;
    refused.count += 1;
    return { status, body: {} };
  };
  return refused;
}

test("a renewal is refused for want of a service, and the events go on", () =>
  hasty(() =>
    attackedPerson(cluster, async ({ proxy, user }) => {
      const conversation = await ada.client.openDirect(user.client.userId);
      const seen: ClientEvent[] = [];
      let refused = { count: 0 };
      for await (const event of user.client.events()) {
        seen.push(event);
        if (event.type === "caught_up" && refused.count === 0) {
          // As often as a call is repeated; then the connection is made with the token of before.
          refused = away(proxy, 5, ({ path }) => path === "/auth/refresh");
          proxy.end(4401);
          await conversation.send("after the outage");
        }
        if (event.type === "message") break;
      }
      assert.deepEqual(shown(seen), ["after the outage"]);
      assert.equal(refused.count, 5);
    }),
  ));

test("a renewal that the service refuses ends the events", () =>
  attackedPerson(cluster, async ({ proxy, user }) => {
    const read = async (): Promise<void> => {
      for await (const event of user.client.events()) {
        if (event.type !== "caught_up") continue;
        away(proxy, 1, ({ path }) => path === "/auth/refresh", 401);
        proxy.end(4401);
      }
    };
    await assert.rejects(read(), (error) => error instanceof Closed && error.closeCode === 4401);
  }));

test("a token that is still good is used while it cannot be renewed", () =>
  hasty(() =>
    attackedPerson(cluster, async ({ proxy, user }) => {
      const refused = away(proxy, 5, ({ path }) => path === "/auth/refresh");
      const { now } = Date;
      // Twenty seconds before its end.
      Date.now = () => now() + 280_000;
      try {
        await user.client.devices.list();
      } finally {
        Date.now = now;
      }
      assert.equal(refused.count, 5);
    }),
  ));

test("a message whose keys cannot be read waits for them", () =>
  hasty(() =>
    attackedPerson(cluster, async ({ proxy, victim, user }) => {
      const refused = away(
        proxy,
        23,
        ({ method, path }) => method === "GET" && path.includes("/groups/"),
      );
      const conversation = await ada.client.openDirect(user.client.userId);
      await conversation.send("one");
      await conversation.send("two");
      const seen: ClientEvent[] = [];
      for await (const event of user.client.events()) {
        seen.push(event);
        if (shown(seen).length === 2) break;
      }
      assert.deepEqual(shown(seen), ["one", "two"]);
      assert.deepEqual([refused.count, victim.faults], [23, []]);
    }),
  ));

test("a handler that meets an outage uses up no tries, and its reply is sent", () =>
  hasty(async () => {
    const made = await cluster.agent("patient", ada.client);
    const proxy = await Proxy.start(made.url);
    const dead: unknown[] = [];
    let runs = 0;
    const agent = new Agent({
      ...made,
      url: proxy.url,
      retryDelays: [],
      hooks: { dead_letter: ({ error }) => void dead.push((error as Error).message) },
    }).on("message", async (ctx) => {
      runs += 1;
      if (ctx.text === "bad") throw new Error("a fault of its own");
      // A developer's own error keeps its cause.
      await ctx.reply(`You said: ${ctx.text}`).catch((cause: unknown) => {
        throw new Error("no reply", { cause });
      });
    });
    await running(agent, async () => {
      const conversation = await ada.client.openAgent(made.agentId);
      for (const [status, times] of [
        [503, 23],
        [429, 3],
      ] as const) {
        runs = 0;
        const isReply = ({ method, path }: Request): boolean =>
          method === "POST" && path.endsWith("/messages");
        const refused = away(proxy, times, isReply, status);
        if (status === 429) {
          proxy.before = (request) => {
            if (!isReply(request) || refused.count >= times) return undefined;
            refused.count += 1;
            const params = { retry_after_ms: 61_000 };
            return { status, body: { error: { code: "RATE_LIMITED", message: "", params } } };
          };
        }
        const answer = await answerTo(ada, () => conversation.send(`${status}`));
        assert.equal(answer.opened?.content["text"], `You said: ${status}`);
        assert.equal(refused.count, times);
        assert(runs > 1);
      }
      assert.deepEqual(dead, []);
      await conversation.send("bad");
      await until(() => dead.length > 0);
      assert.deepEqual(dead, ["a fault of its own"]);
    });
    proxy.close();
  }));

/** Waits of these lengths are a hundred times shorter. */
async function shortened(waits: readonly number[], during: () => Promise<void>): Promise<void> {
  const { setTimeout: wait } = globalThis;
  const shorter = (run: () => void, ms?: number, ...rest: []): NodeJS.Timeout =>
    wait(run, ms !== undefined && waits.includes(ms) ? ms / 100 : ms, ...rest);
  const mocked = mock.method(globalThis, "setTimeout", shorter as typeof setTimeout);
  try {
    await during();
  } finally {
    mocked.mock.restore();
  }
}

for (const transport of ["socket", "poll"] as const) {
  test(`by ${transport} a handler that throws anything, or never ends, blocks its own conversation`, () =>
    shortened([10_000, 300_000], async () => {
      const bob = await cluster.user("bob");
      const options = await cluster.agent("strange", ada.client);
      const said: string[] = [];
      const note = (text: string, fields?: object): void =>
        void said.push(`${text} ${JSON.stringify(fields)}`);
      const logger = { debug: note, info: note, warn: note, error: note };
      let end!: () => void;
      const ends = new Promise<void>((resolve) => (end = resolve));
      const runs: string[] = [];
      const agent = new Agent({ ...options, logger, retryDelays: [] }).on("message", async (ctx) => {
        runs.push(ctx.text);
        if (ctx.text === "nothing") throw undefined;
        if (ctx.text === "a word") throw "a zebra";
        if (ctx.text === "for ever") await ends;
        await ctx.reply(`You said: ${ctx.text}`);
      });
      const isSaid = (text: string): boolean => said.some((line) => line.includes(text));
      await running(
        agent,
        async () => {
          const adas = await ada.client.openAgent(options.agentId);
          for (const text of ["nothing", "a word"]) await adas.send(text);
          const after = await answerTo(ada, () => adas.send("after"));
          assert.equal(after.opened?.content["text"], "You said: after");
          assert(isSaid("have failed") && isSaid('"error":"undefined"') && isSaid('"error":"string"'));
          assert(!isSaid("zebra"));
          await adas.send("for ever");
          await until(() => isSaid("still run"));
          const bobs = await bob.client.openAgent(options.agentId);
          for (const text of ["one", "two"]) {
            const answer = await answerTo(bob, () => bobs.send(text));
            assert.equal(answer.opened?.content["text"], `You said: ${text}`);
          }
          end();
          await answerTo(ada, () => adas.send("in the end"));
          const all = (await texts(adas)).map(String).filter((text) => text.startsWith("You said"));
          assert.deepEqual(all, ["after", "for ever", "in the end"].map((text) => `You said: ${text}`));
        },
        { transport },
      );
      assert.equal(new Set(runs).size, runs.length, "no event was handled twice");
    }));
}

test("an event of an unknown shape is passed over", async () => {
  const made = await cluster.agent("robust", ada.client);
  const proxy = await Proxy.start(made.url);
  const said: string[] = [];
  const note = (text: string): void => void said.push(text);
  const logger = { debug: note, info: note, warn: note, error: note };
  let last: Value = null;
  proxy.onFrame = (frame) => {
    if (frame.event === "message.created") last = frame;
    return [frame];
  };
  const agent = new Agent({ ...made, url: proxy.url, logger }).on("message", async (ctx) => {
    await ctx.reply(`You said: ${ctx.text}`);
  });
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(made.agentId);
    await answerTo(ada, () => conversation.send("one"));
    for (const data of [{}, null, 7, { user_id: {} }]) {
      last = again(last);
      proxy.say({ ...last, event: "key.device_added", data });
    }
    await until(() => said.some((text) => text.includes("looked into")));
    await conversation.rotate();
    const answer = await answerTo(ada, () => conversation.send("two"));
    assert.equal(answer.opened?.content["text"], "You said: two");
  });
  proxy.close();
});

const SECRET = "a secret of one's own making";

test("a delivery in an outage is asked for again, and a look that fails is no fault", () =>
  hasty(async () => {
    const made = await cluster.agent("hooked", ada.client);
    const proxy = await Proxy.start(made.url);
    const agent = new Agent({ ...made, url: proxy.url }).on("message", (ctx) => ctx.reply("here"));
    await agent.check();
    const conversation = await ada.client.openAgent(made.agentId);
    await conversation.send("hello");
    const body = await eventOf(made, "message.created");
    const receive = agent.webhook(SECRET);
    away(proxy, 5, ({ path }) => path.endsWith("/messages"));
    const refused = await receive(signed(SECRET, body));
    assert.deepEqual([refused.status, refused.headers.get("retry-after")], [503, "5"]);
    assert.equal((await receive(signed(SECRET, body))).status, 200);
    assert.deepEqual(await texts(conversation), ["hello", "here"]);
    // An event about somebody's keys, while those cannot be read.
    away(proxy, 5, ({ path }) => path.includes("/keys/users/"));
    const added = {
      ...JSON.parse(body),
      event_id: newUlid(),
      event: "key.device_added",
      data: { user_id: ada.client.userId },
    };
    assert.equal((await receive(signed(SECRET, JSON.stringify(added)))).status, 200);
    proxy.close();
  }));

test("an event whose handler outlives its delivery is handled once", async (t) => {
  const options = await cluster.agent("slow", ada.client);
  let heard = 0;
  let end!: () => void;
  const ended = new Promise<void>((resolve) => (end = resolve));
  const agent = new Agent(options).on("agent.created", async () => {
    heard += 1;
    await ended;
  });
  await agent.check();
  const receive = agent.webhook(SECRET);
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const event = { event_id: newUlid(), event: "agent.created", cursor: "1-1", seq: 1, data: {} };
  const body = JSON.stringify({ ...event, created_at: new Date().toISOString() });
  const first = receive(signed(SECRET, body));
  while (heard === 0) await new Promise((resolve) => setImmediate(resolve));
  t.mock.timers.tick(9_000);
  assert.equal((await first).status, 503);
  end();
  t.mock.timers.reset();
  await until(async () => (await receive(signed(SECRET, body))).status === 200);
  assert.equal(heard, 1);
});

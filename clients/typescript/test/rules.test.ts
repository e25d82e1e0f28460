// Rules of delivery: keys, retries, identities, closings, stops.
import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";
import { after, before, mock, test } from "node:test";
import { WebSocketServer } from "ws";
import { Agent, Closed, type AgentOptions, type Context } from "@blindpipe/client/agent";
import { AgentKey, messageOrigin, newUlid, replyId } from "@blindpipe/client/e2ee";
import { DEFAULT_RETRY_DELAYS_MS } from "#dist/agent/options.js";
import { Http } from "#dist/transport/http.js";
import { Socket } from "#dist/transport/socket.js";
import { HookCaller, CONSOLE } from "#dist/hooks.js";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { MortalWorld } from "./mortal.js";
import { Proxy } from "./proxy.js";
import { answerTo, asAgent, collect, fromAgent, running, texts, until } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

test("of several keys the one that fits signs, and none is replaced in silence", async () => {
  const options = await cluster.agent("rotated", ada.client);
  await new Agent(options).check();
  const newer = AgentKey.random().toText();
  const both = new Agent({ ...options, key: `${newer},${String(options.key)}` });
  both.on("message", (ctx) => ctx.reply("it fits"));
  await running(both, async () => {
    const conversation = await ada.client.openAgent(options.agentId);
    const answer = await answerTo(ada, () => conversation.send("?"));
    assert.equal(answer.opened?.content["text"], "it fits");
  });
  const strange = new Agent({ ...options, key: `${newer},${AgentKey.random().toText()}` });
  await assert.rejects(strange.run(), { code: "AGENT_KEYS_MISMATCH" });
});

test("a dead letter stops the agent if its developer says so, and comes again", async () => {
  const options = await cluster.agent("careful", ada.client);
  const agent = new Agent({ ...options, retryDelays: [], onDeadLetter: "stop" });
  agent.on("message", () => {
    throw new RangeError("no");
  });
  await agent.check();
  const conversation = await ada.client.openAgent(options.agentId);
  await conversation.send("bad");
  await assert.rejects(agent.run(), RangeError);
  const heard: string[] = [];
  const again = new Agent(options).on("message", (ctx) => void heard.push(ctx.text));
  await running(again, async () => void (await until(() => heard.length > 0)));
  assert.deepEqual(heard, ["bad"]);
});

test("a failed handler runs again after 1, 5, 25 and 125 s", () => {
  assert.deepEqual(DEFAULT_RETRY_DELAYS_MS, [1_000, 5_000, 25_000, 125_000]);
});

test("acknowledgements are few, and each says all before it", async () => {
  const options = await cluster.agent("thrifty", ada.client);
  const proxy = await Proxy.start(options.url);
  const acks: { at: number; cursor: string }[] = [];
  let newest = "";
  proxy.onClientFrame = (frame) => {
    if (frame.type === "ack") acks.push({ at: Date.now(), cursor: frame.cursor });
    return frame;
  };
  proxy.onFrame = (frame) => {
    if (frame.type === "event") newest = frame.cursor;
    return [frame];
  };
  let heard = 0;
  const agent = new Agent({ ...options, url: proxy.url }).on("message", () => void (heard += 1));
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(options.agentId);
    for (let number = 0; number < 9; number++) await conversation.send(String(number));
    await until(() => heard === 9 && acks.at(-1)?.cursor === newest);
  });
  // The timers of both ends are not exact.
  const gaps = acks.slice(1).map(({ at }, i) => at - acks[i]!.at);
  assert(gaps.every((gap) => gap >= 150), String(gaps));
  assert(acks.length < 12, String(acks.length));
  proxy.close();
});

test("an id of another message is no success", async () => {
  const options = await cluster.agent("doubtful", ada.client);
  const errors: unknown[] = [];
  const agent = new Agent(options).on("message", async (ctx) => {
    // Somebody with the agent's token, but without its key, was faster.
    const { conversation_id, client_message_id, sender } = ctx.message!;
    const origin = await messageOrigin(conversation_id, sender, client_message_id!);
    const path = `/agents/${options.agentId}/conversations/${conversation_id}/messages`;
    const payload = { type: "text", text: "forged" };
    const id = await replyId(options.agentId, origin, "mine");
    await asAgent(options, "POST", path, { payload, client_message_id: id });
    await ctx.reply("mine", { key: "mine" }).catch((error: unknown) => errors.push(error));
  });
  const conversation = await ada.client.openAgent(options.agentId);
  await running(agent, async () => {
    await conversation.send("?");
    await until(() => errors.length > 0);
  });
  assert.equal((errors[0] as Error).name, "IdConflict");
  assert.deepEqual(await texts(conversation), ["?", "clear"]);
});

for (const transport of ["socket", "poll"] as const) {
  test(`by ${transport} a redelivered event says so, and the history knows the answer`, async () => {
    const options = await cluster.agent("costly", ada.client);
    await new Agent(options).check();
    const conversation = await ada.client.openAgent(options.agentId);
    await conversation.send("?");
    const world = new MortalWorld(-1);
    const seen: [boolean, boolean][] = [];
    const dying = new Agent({ ...options, fetch: world.fetch, webSocket: world.webSocket });
    dying.on("message", async (ctx) => {
      seen.push([ctx.replayed, await ctx.answered()]);
      await ctx.reply("expensive");
      world.kill();
      await world.point();
    });
    await world.run(dying);
    const again = new Agent(options).on("message", async (ctx) => {
      seen.push([ctx.replayed, await ctx.answered()]);
    });
    const during = async () => {
      await until(() => seen.length === 2);
      await conversation.send("and now?");
      await until(() => seen.length === 3);
    };
    await running(again, during, { transport });
    assert.deepEqual(seen, [
      [true, false],
      [true, true],
      [false, false],
    ]);
  });
}

test("without a socket a stream sends its end only", async () => {
  const options = await cluster.agent("quiet", ada.client);
  const agent = new Agent(options).on("message", async (ctx) => {
    ctx.typing();
    const out = ctx.stream();
    for (const word of ["one ", "two ", "three"]) out.write(word);
    await out.end();
  });
  await running(
    agent,
    async () => {
      const conversation = await ada.client.openAgent(options.agentId);
      const events = await collect(
        ada,
        () => conversation.send("?"),
        (all) => all.some(fromAgent),
      );
      assert(!events.some((event) => event.type === "delta"));
      assert.deepEqual(await texts(conversation), ["?", "one two three"]);
    },
    { transport: "poll" },
  );
});

test("typing is shown, and a cancelled stream leaves no message", async () => {
  const options = await cluster.agent("undecided", ada.client);
  const agent = new Agent(options).on("message", async (ctx) => {
    ctx.typing();
    const out = ctx.stream();
    out.write("perhaps");
    await pause(100);
    await out.cancel("no");
    await ctx.reply("after all");
  });
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(options.agentId);
    const events = await collect(
      ada,
      () => conversation.send("?"),
      (all) => all.some(fromAgent),
    );
    assert(events.some((event) => event.type === "typing"));
    assert(events.some((event) => event.type === "delta" && event.append === "perhaps"));
    assert.deepEqual(await texts(conversation), ["?", "after all"]);
  });
});

function httpOf(options: AgentOptions, url: string, onRetry: (attempt: number) => void): Http {
  const hooks = new HookCaller({ retry: ({ attempt }) => onRetry(attempt) }, CONSOLE);
  return new Http({ url, fetch, hooks, token: () => options.token });
}

test("only what is safe to repeat is repeated", async () => {
  const options = await cluster.agent("patient", ada.client);
  const conversation = await ada.client.openAgent(options.agentId);
  const proxy = await Proxy.start(options.url);
  const retries: number[] = [];
  const http = httpOf(options, proxy.url, (attempt) => retries.push(attempt));
  const path = `/agents/${options.agentId}/conversations/${conversation.id}/messages`;
  const random = mock.method(Math, "random", () => 0.001);
  try {
    // A read, and a send with an id, survive four faults; the send is stored once.
    proxy.faults = [502, 503, 504, "cut"];
    await http.data({ method: "GET", path: `/agents/${options.agentId}` });
    assert.deepEqual(retries, [1, 2, 3, 4]);
    const body = { payload: { type: "text", text: "once" }, client_message_id: newUlid() };
    proxy.faults = ["cut", "cut", 503];
    const sent = await http.data<{ duplicate: boolean }>({
      method: "POST",
      path,
      body,
      repeatable: true,
    });
    assert.equal(sent.duplicate, true);
    proxy.faults = [502, 502, 502, 502, 502];
    const five = http.data({ method: "GET", path: `/agents/${options.agentId}` });
    await assert.rejects(five, { status: 502, code: "HTTP_502" });
    // Nothing else is repeated.
    proxy.faults = ["cut"];
    const once = http.data({
      method: "POST",
      path,
      body: { payload: { type: "text", text: "no id" } },
    });
    await assert.rejects(once, { name: "ConnectionLost" });
    assert.equal(proxy.faults.length, 0);
  } finally {
    random.mock.restore();
    proxy.close();
  }
  assert.equal((await texts(conversation)).length, 2);
});

test("a token that is replaced stops the agent", async () => {
  const options = await cluster.agent("replaced", ada.client);
  const codes: number[] = [];
  let isReady = false;
  const hooks = {
    disconnected: ({ code }: { code: number }) => void codes.push(code),
    caught_up: () => void (isReady = true),
  };
  const run = new Agent({ ...options, hooks }).run();
  run.catch(() => {});
  await until(() => isReady);
  const path = `/agents/${options.agentId}/token/regenerate`;
  await ada.client.account.http.data({ method: "POST", path, body: { emergency: true } });
  await assert.rejects(run, (error) => error instanceof Closed && error.closeCode === 4403);
  assert.deepEqual(codes, [4403]);
  await assert.rejects(new Agent(options).run(), { code: "AGENT_TOKEN_INVALID" });
});

test("a refusal for want of places names their holders", async () => {
  const options = await cluster.agent("crowded", ada.client);
  const refused: (readonly string[])[] = [];
  const hooks = {
    disconnected: ({ code, holders }: { code: number; holders?: readonly string[] }) => {
      if (code === 4409 && holders) refused.push(holders);
    },
  };
  await new Agent(options).check();
  const stop = new AbortController();
  const agents = Array.from({ length: 8 }, () => new Agent({ ...options, hooks }));
  const runs = agents.map((agent) => agent.run({ standby: true, signal: stop.signal }));
  await until(() => refused.length > 0);
  stop.abort();
  await Promise.all(runs);
  assert(refused[0]!.length >= 1);
});

test("a stop lets handlers end, and acknowledges", async () => {
  const options = await cluster.agent("orderly", ada.client);
  let hasBegun = false;
  const agent = new Agent(options).on("message", async (ctx) => {
    hasBegun = true;
    await pause(200);
    await ctx.reply("ended");
  });
  const conversation = await ada.client.openAgent(options.agentId);
  await running(agent, async () => {
    await conversation.send("?");
    await until(() => hasBegun);
  });
  assert.deepEqual(await texts(conversation), ["?", "ended"]);
  const left = await asAgent(options, "GET", `/agents/${options.agentId}/messages/poll?wait=0`);
  const { data } = (await left.json()) as { data: { event: string }[] };
  assert(!data.some(({ event }) => event === "message.created"));
});

test("a refusal is of the class of its code", async () => {
  const options = await cluster.agent("dismissed", ada.client);
  let refused: { status: number; requestId: string | null } | null = null;
  let isRevoked = false;
  let hasBegun = false;
  const agent = new Agent(options).on("message", async (ctx: Context) => {
    hasBegun = true;
    await until(() => isRevoked);
    const { RelationRevoked } = await import("@blindpipe/client/agent");
    await ctx.reply("too late").catch((error: unknown) => {
      if (error instanceof RelationRevoked) refused = error;
    });
  });
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(options.agentId);
    await conversation.send("?");
    await until(() => hasBegun);
    const { http } = ada.client.account;
    for await (const relation of http.pages<{ agent_id: string; relation_id: string }>(
      "/relations",
    )) {
      if (relation.agent_id !== options.agentId) continue;
      await http.data({ method: "DELETE", path: `/relations/${relation.relation_id}` });
    }
    isRevoked = true;
    const { status, requestId } = await until(() => refused);
    assert.equal(status, 403);
    assert(requestId);
  });
});

test("a cursor of another epoch is told as `resync`, and nothing is lost", async () => {
  for (const transport of ["socket", "poll"] as const) {
    const options = await cluster.agent("restored", ada.client);
    const proxy = await Proxy.start(options.url);
    const resyncs: { oldest: string; head: string }[] = [];
    const hooks = {
      resync: (details: { oldest: string; head: string }) => void resyncs.push(details),
    };
    const agent = new Agent({ ...options, url: proxy.url, hooks });
    agent.on("message", (ctx) => ctx.reply(`You said: ${ctx.text}`));
    // The client takes cursors of a database that was since restored: another epoch.
    const foreign = (cursor: string): string => `1${cursor}`;
    proxy.onFrame = (frame) => [frame.cursor ? { ...frame, cursor: foreign(frame.cursor) } : frame];
    proxy.onAnswer = (request, { status, body }) => {
      if (!request.path.includes("/messages/poll?") || status !== 200) return undefined;
      const data = body.data.map((event: { cursor: string }) => ({
        ...event,
        cursor: foreign(event.cursor),
      }));
      return {
        status,
        body: { ...body, data, next_cursor: body.next_cursor && foreign(body.next_cursor) },
      };
    };
    await running(
      agent,
      async () => {
        const conversation = await ada.client.openAgent(options.agentId);
        const first = await answerTo(ada, () => conversation.send("one"));
        assert.equal(first.opened?.content["text"], "You said: one");
        proxy.onFrame = (frame) => [frame];
        proxy.onAnswer = () => undefined;
        if (transport === "socket") proxy.cut();
        await until(() => resyncs.length > 0);
        assert.match(resyncs[0]!.head, /-\d+$/);
        const second = await answerTo(ada, () => conversation.send("two"));
        assert.equal(second.opened?.content["text"], "You said: two");
      },
      { transport },
    );
    proxy.close();
  }
});

test("an acknowledgement that is too old begins with the oldest event, without a loop", async () => {
  // As after 30 days away: reading after the last acknowledgement answers a resync as well.
  const options = await cluster.agent("away", ada.client);
  const conversation = await ada.client.openAgent(options.agentId);
  const proxy = await Proxy.start(options.url);
  const resumed: (string | null)[] = [];
  let oldest = "";
  proxy.onClientFrame = (frame) => {
    if (frame.type === "auth") resumed.push(frame.resume ?? null);
    return frame;
  };
  proxy.onFrame = (frame) => {
    if (frame.type !== "ready" || resumed.at(-1) !== null) return [frame];
    oldest = frame.cursor;
    const head = `${oldest.split("-")[0]}-${frame.replay.to}`;
    return [frame, { type: "resync_required", oldest, head }];
  };
  const heard: string[] = [];
  const agent = new Agent({ ...options, url: proxy.url });
  agent.on("message", (ctx) => void heard.push(ctx.text));
  await agent.check();
  await conversation.send("while it was away");
  await running(agent, async () => {
    await until(() => heard.length === 1);
    await conversation.send("and now");
    await until(() => heard.length === 2);
  });
  assert.deepEqual(heard, ["while it was away", "and now"]);
  assert.deepEqual(resumed, [null, oldest]);
  proxy.close();
});

test("a connection that says nothing is dead", async () => {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  const codes: number[] = [];
  let connections = 0;
  server.on("connection", (socket) => {
    connections += 1;
    socket.once("message", () => socket.send('{"type":"ready","heartbeat_interval_ms":25000}'));
  });
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as { port: number };
  const stop = new AbortController();
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const socket = new Socket({
    url: `http://127.0.0.1:${port}`,
    webSocket: async (url) => new (await import("ws")).WebSocket(url) as never,
    hooks: new HookCaller({ disconnected: ({ code }) => void codes.push(code) }, CONSOLE),
    auth: async () => ({ type: "auth" }),
    renew: async () => false,
    holders: async () => [],
    onFrame: () => {},
    onReady: () => {},
    signal: stop.signal,
  });
  const run = socket.run();
  const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
  try {
    while (!socket.isReady) await turn();
    // 25 s of heartbeat and 15 s of grace: nothing before, the end after.
    mock.timers.tick(25_000);
    mock.timers.tick(14_000);
    for (let i = 0; i < 20; i++) await turn();
    assert.deepEqual(codes, []);
    mock.timers.tick(16_000);
    while (codes.length === 0) await turn();
    // The wait for the next try may begin some turns later.
    while (connections < 2) {
      mock.timers.tick(500);
      await turn();
    }
  } finally {
    stop.abort();
    mock.timers.reset();
    await run;
    server.close();
  }
});

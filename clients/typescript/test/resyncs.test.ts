// A server that takes no cursor is not asked for ever, and cursors of another history say nothing.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { Proxy, type Answer } from "./proxy.js";
import { asAgent, running, until } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

test("a socket whose every cursor is refused goes on with what is new", async (t) => {
  const options = await cluster.agent("forgotten", ada.client);
  const conversation = await ada.client.openAgent(options.agentId);
  const proxy = await Proxy.start(options.url);
  t.after(() => proxy.close());
  const resumed: (string | null)[] = [];
  let [oldest, head] = ["", ""];
  proxy.onClientFrame = (frame) => {
    if (frame.type === "auth") resumed.push(frame.resume ?? null);
    return frame;
  };
  proxy.onFrame = (frame) => {
    if (frame.type !== "ready") return [frame];
    oldest ||= frame.cursor;
    head ||= `${oldest.split("-")[0]}-${frame.replay.to}`;
    return [frame, { type: "resync_required", oldest, head }];
  };
  const heard: string[] = [];
  const agent = new Agent({ ...options, url: proxy.url });
  agent.on("message", (ctx) => void heard.push(ctx.text));
  await running(agent, async () => {
    await until(() => resumed.length >= 3);
    await conversation.send("still there?");
    await until(() => heard.length > 0);
  });
  assert.deepEqual(resumed, [null, oldest, oldest]);
  assert.deepEqual(heard, ["still there?"]);
});

test("a poll whose every cursor is refused begins with what is new, and pauses", async (t) => {
  const options = await cluster.agent("forgotten", ada.client);
  const conversation = await ada.client.openAgent(options.agentId);
  const proxy = await Proxy.start(options.url);
  t.after(() => proxy.close());
  const cursors: (string | null)[] = [];
  await new Agent(options).check();
  const look = await asAgent(options, "GET", `/agents/${options.agentId}/messages/poll?wait=0`);
  const { next_cursor: head } = (await look.json()) as { next_cursor: string };
  const oldest = `${head.split("-")[0]}-0`;
  const refused: Answer = {
    status: 409,
    body: { error: { code: "CURSOR_EXPIRED", message: "", params: { oldest, head } } },
  };
  let isRefused = true;
  proxy.before = ({ path }) => {
    if (!path.includes("/messages/poll?") || !isRefused) return undefined;
    cursors.push(new URL(path, "http://node.invalid").searchParams.get("cursor"));
    return refused;
  };
  const heard: string[] = [];
  const agent = new Agent({ ...options, url: proxy.url });
  agent.on("message", (ctx) => void heard.push(ctx.text));
  await running(
    agent,
    async () => {
      await until(() => cursors.length >= 5);
      isRefused = false;
      await conversation.send("still there?");
      await until(() => heard.length > 0, 20_000);
    },
    { transport: "poll" },
  );
  assert.deepEqual(cursors.slice(0, 5), [null, oldest, oldest, head, head]);
  assert(cursors.length < 20, String(cursors.length));
  assert.deepEqual(heard, ["still there?"]);
});

test("a handler that ends after a resync acknowledges nothing of the new history", async (t) => {
  const options = await cluster.agent("late", ada.client);
  const conversation = await ada.client.openAgent(options.agentId);
  const proxy = await Proxy.start(options.url);
  t.after(() => proxy.close());
  const acks: string[] = [];
  // The events of before come from a database that was since restored.
  let isOld = true;
  const foreign = (cursor: string): string => `1${cursor}`;
  proxy.onFrame = (frame) => [
    isOld && frame.cursor ? { ...frame, cursor: foreign(frame.cursor) } : frame,
  ];
  proxy.onClientFrame = (frame) => {
    if (!isOld && frame.type === "ack") acks.push(frame.cursor);
    return frame;
  };
  let isResynced = false;
  const heard: string[] = [];
  let end!: () => void;
  const ended = new Promise<void>((resolve) => (end = resolve));
  const agent = new Agent({
    ...options,
    url: proxy.url,
    hooks: { resync: () => void (isResynced = true) },
  });
  agent.on("message", async (ctx) => {
    heard.push(ctx.text);
    if (ctx.text === "slow") await ended;
  });
  await running(agent, async () => {
    await conversation.send("slow");
    await until(() => heard.length > 0);
    isOld = false;
    proxy.cut();
    await until(() => isResynced);
    end();
    await conversation.send("quick");
    await until(() => heard.includes("quick"));
    await until(() => acks.length > 0);
  });
  const path = `/agents/${options.agentId}/messages/poll?wait=0`;
  // The first of several acknowledgements may be seen before the node has stored the last.
  const left = await until(async () => {
    const page = (await (await asAgent(options, "GET", path)).json()) as {
      next_cursor: string;
      data: { event: string }[];
    };
    return page.data.some(({ event }) => event === "message.created") ? null : page;
  });
  const epoch = left.next_cursor.split("-")[0];
  assert.deepEqual([...new Set(acks.map((cursor) => cursor.split("-")[0]))], [epoch]);
});

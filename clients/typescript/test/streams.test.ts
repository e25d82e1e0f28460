// Streams over lost connections, for listeners that come in their middle.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import type { ClientEvent } from "@blindpipe/client";
import { Agent } from "@blindpipe/client/agent";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { Proxy } from "./proxy.js";
import { collect, fromAgent, running, until } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

/** What a screen shows of a single stream. */
function shown(events: readonly ClientEvent[]): string {
  return events.reduce((text, event) => {
    if (event.type === "checkpoint") return event.text;
    return event.type === "delta" ? text + event.append : text;
  }, "");
}

const isStatus = (text: string) => (event: ClientEvent) =>
  event.type === "status" && event.text === text;

test("a device that comes in the middle sees all, also after a lost connection", async () => {
  const options = await cluster.agent("narrator", ada.client);
  const proxy = await Proxy.start(options.url);
  let [isJoined, isBack, isLosing] = [false, false, false];
  proxy.onClientFrame = (frame) =>
    isLosing && frame.type === "stream.delta"
      ? { type: "stream.keepalive", stream_id: frame.stream_id }
      : frame;
  const agent = new Agent({ ...options, url: proxy.url }).on("message", async (ctx) => {
    ctx.status("searching…");
    await pause(500);
    const out = ctx.stream();
    for (let n = 0; n < 5; n++) {
      out.write(`${n} `);
      await pause(100);
    }
    ctx.status("reading…");
    await until(() => isJoined, 30_000);
    isLosing = true;
    out.write("5 ");
    await pause(300);
    isLosing = false;
    proxy.cut();
    await until(() => isBack, 30_000);
    await out.end();
  });
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(options.agentId);
    const first = await collect(
      ada,
      () => conversation.send("?"),
      (all) => all.some(isStatus("reading…")),
    );
    assert.ok(first.some(isStatus("searching…")));
    const events: ClientEvent[] = [];
    for await (const event of ada.client.events()) {
      events.push(event);
      if (event.type === "caught_up") {
        const live = await conversation.streams();
        assert.deepEqual(
          live.map((stream) => stream.agent_id),
          [options.agentId],
        );
      }
      if (isStatus("reading…")(event) && !isJoined) {
        assert.equal(shown(events), "0 1 2 3 4 ");
        isJoined = true;
      }
      isBack ||= shown(events).endsWith("5 ");
      if (fromAgent(event)) break;
    }
    assert.equal(shown(events), "0 1 2 3 4 5 ");
    assert.equal(events.find(fromAgent)?.opened?.content["text"], "0 1 2 3 4 5 ");
  });
  proxy.close();
});

test("a status without a text ends with the reply", async () => {
  const options = await cluster.agent("searcher", ada.client);
  const agent = new Agent(options).on("message", async (ctx) => {
    ctx.status("searching…");
    await pause(500);
    await ctx.reply("found");
  });
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(options.agentId);
    const events = await collect(
      ada,
      () => conversation.send("?"),
      (all) => all.some((event) => event.type === "stream_cancelled") && all.some(fromAgent),
    );
    assert.ok(events.some(isStatus("searching…")));
    assert.deepEqual(await conversation.streams(), []);
  });
});

test("a silent stream sends its signs, so that a tool of some minutes ends no live view", async (t) => {
  const now = Date.now;
  let passedMs = 0;
  t.mock.method(Date, "now", () => now() + passedMs);
  const options = await cluster.agent("thinker", ada.client);
  const proxy = await Proxy.start(options.url);
  t.after(() => proxy.close());
  const said: string[] = [];
  proxy.onClientFrame = (frame) => {
    const [kind, name] = String(frame.type).split(".");
    if (kind === "stream") said.push(name!);
    return frame;
  };
  /** The service ends a stream after a minute without a sign: a third of it passes. */
  const nextSign = async (): Promise<void> => {
    const before = said.length;
    passedMs += 20_000;
    await until(() => said.length > before);
  };
  const agent = new Agent({ ...options, url: proxy.url }).on("message", async (ctx) => {
    const out = ctx.stream();
    out.status("thinking…");
    await until(() => said.length === 2);
    for (let sign = 0; sign < 3; sign++) await nextSign();
    out.write("found");
    await until(() => said.at(-1) === "delta");
    // The first sign has the text for those who come later, and a later one keeps it fresh.
    for (let sign = 0; sign < 7; sign++) await nextSign();
    await out.end();
  });
  let events: ClientEvent[] = [];
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(options.agentId);
    events = await collect(
      ada,
      () => conversation.send("?"),
      (all) => all.some(fromAgent),
    );
  });
  assert.ok(!events.some((event) => event.type === "stream_cancelled"));
  assert.equal(shown(events), "found");
  assert.equal(events.find(fromAgent)?.opened?.content["text"], "found");
  const signs = (count: number): string[] => Array<string>(count).fill("keepalive");
  assert.deepEqual(said, [
    ...["begin", "status", ...signs(3)],
    ...["delta", "checkpoint", ...signs(5), "checkpoint", "end"],
  ]);
});

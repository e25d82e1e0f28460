// A push from the server through a push service to the worker. The browser's own push service is far away, so a local
// one takes its place, and the push is handed to the browser by its developer tools.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import { devCluster } from "@blindpipe/client/testing";
import { PushService, pushedTo } from "./pushes.mjs";
import { appOf, findBrowser, newPage, openAgent, pushStandIn, register, say, startBrowser } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";

let cluster;
let browser;
let service;

before(async () => {
  if (!program) return;
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
  service = await PushService.start();
});

after(async () => {
  service?.stop();
  await browser?.close();
});

test("a push goes from the server to the worker while the app is closed", { skip, timeout: 90_000 }, async (t) => {
  const { page, context, faults } = await newPage(browser);
  page.setDefaultTimeout(15_000);
  await context.addInitScript(pushStandIn, service.subscription);
  await context.addInitScript(() => (globalThis.permission = "granted"));
  const owner = (await cluster.user("owner")).client;
  const options = await cluster.agent("Deployer", owner);
  const decided = [];
  const agent = new Agent(options);
  agent.on("message", () => {});
  agent.onDecision("deploy", (ctx) => void decided.push(ctx.decision.outcome));
  const stopping = new AbortController();
  const running = agent.run({ signal: stopping.signal });
  const { userId } = await register(page, cluster, `pushed-${Date.now()}@example.com`, "Ida");
  const ben = (await cluster.user("ben")).client;
  await openAgent(page, cluster, options.agentId);
  // The first message brings the keys that the agent asks with.
  await say(page, "hello");
  await page.locator(".feed article.own", { hasText: "hello" }).waitFor();
  const withAgent = new URL(page.url()).hash.split("/")[2];
  await page.goto(`${appOf(cluster)}#/settings/notifications`);
  await page.getByRole("button", { name: "Turn on" }).click();
  await page.getByText("Notifications are on.").waitFor();

  await t.test("a message says that something waits", async () => {
    // The page of the app goes, and its socket.
    const { push, shows } = await pushedTo(context, page, cluster, "sw.js");
    const talk = await ben.openDirect(userId);
    await talk.send("You cannot see this");
    const pushed = await service.next();
    assert.equal(pushed.event, "message.created");
    assert.equal(pushed.conversation_id, talk.id);
    assert.deepEqual(Object.keys(pushed).sort(), ["conversation_id", "count", "event", "event_id"], "and no words");
    await push(pushed);
    const { title, body } = await shows(talk.id);
    assert.deepEqual([title, body], ["Blindpipe", "There is a new message."]);
  });

  await t.test("an approval is decided from the notification, and the agent hears of it", async () => {
    await page.goto(`${appOf(cluster)}#/settings/notifications`);
    const replaced = context.waitForEvent("serviceworker", (worker) => worker.url().endsWith("/app/reading-sw.js"));
    await page.getByLabel("The same, with Approve and Deny").check();
    await replaced;
    const { push, shows, press } = await pushedTo(context, page, cluster);
    const { approval_id: id } = await agent.approve(withAgent, "deploy", { version: "1.4.2" }, { text: "Deploy 1.4.2?" });
    const pushed = await service.next();
    assert.deepEqual([pushed.event, pushed.id], ["approval.requested", id]);
    await push(pushed);
    const notification = await shows(id);
    assert.equal(notification.title, "Deployer asks for your approval");
    await press(notification, "approve");
    await shows(id, ({ body }) => body === "You have approved it.");
    for (const end = Date.now() + 10_000; decided.length === 0; await page.waitForTimeout(25)) {
      assert.ok(Date.now() < end, "the agent hears of it");
    }
    assert.deepEqual(decided, ["approved"]);
  });

  stopping.abort();
  await running;
  assert.deepEqual(faults, []);
  await context.close();
});

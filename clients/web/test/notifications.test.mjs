// Notifications. Headless Chromium has no push service, so stand-ins give subscriptions and show what the worker does.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import vm from "node:vm";
import { Agent } from "@blindpipe/client/agent";
import { devCluster } from "@blindpipe/client/testing";
import { pushedTo } from "./pushes.mjs";
import { appOf, AXE, deviceKeys, findBrowser, isAccessible, newPage, openAgent, pushStandIn, register, say, startBrowser, until } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";
const WORKER = readFileSync(fileURLToPath(new URL("../public/sw.js", import.meta.url)), "utf8");

let cluster;
let browser;

before(async () => {
  if (!program) return;
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
});

after(() => browser?.close());

for (const [locale, words] of [
  ["en-GB", { settings: "Settings", page: "Notifications", off: "Notifications are off.", on: "Notifications are on.", turnOn: "Turn on", turnOff: "Turn off" }],
  ["de-DE", { settings: "Einstellungen", page: "Mitteilungen", off: "Mitteilungen sind aus.", on: "Mitteilungen sind an.", turnOn: "Einschalten", turnOff: "Ausschalten" }],
]) {
  test(`a person turns notifications on and off (${locale})`, { skip, timeout: 90_000 }, async () => {
    const { page, context, faults } = await newPage(browser);
    page.setDefaultTimeout(15_000);
    await context.addInitScript(AXE);
    await context.addInitScript(pushStandIn, deviceKeys());
    const email = `push-${locale.slice(0, 2)}-${Date.now()}@example.com`;
    await register(page, cluster, email, "Ida");
    await page.evaluate(() => navigator.serviceWorker.ready.then(() => undefined));
    if (locale === "de-DE") {
      // The words of the sign-in are English in this suite, so the language changes after it.
      await context.addInitScript(() => {
        Object.defineProperty(navigator, "languages", { get: () => ["de-DE"] });
        Object.defineProperty(navigator, "language", { get: () => "de-DE" });
      });
      await page.reload();
    }
    await page.getByRole("navigation").getByRole("link", { name: words.settings }).click();
    await page.locator(".links").getByRole("link", { name: words.page }).click();
    await page.getByText(words.off).waitFor();
    await isAccessible(page, "notifications");
    const put = page.waitForRequest((request) => request.method() === "PUT" && request.url().endsWith("/push"));
    await page.getByRole("button", { name: words.turnOn }).click();
    const { endpoint } = (await put).postDataJSON();
    assert.equal(endpoint, "http://127.0.0.1:9/a-secret-address");
    await page.getByText(words.on).waitFor();
    await isAccessible(page, "notifications, on");

    // A start tells the service again.
    const again = page.waitForRequest((request) => request.method() === "PUT" && request.url().endsWith("/push"));
    await page.reload();
    await again;
    await page.getByText(words.on).waitFor();
    await page.getByRole("button", { name: words.turnOff }).click();
    await page.getByText(words.off).waitFor();
    assert.equal(await page.evaluate(() => localStorage.getItem("stand-in-subscription")), null);
    await until(page, () => document.querySelector("[role=status]") !== null);
    assert.deepEqual(faults, []);
    await context.close();
  });
}

test("a refusal of the browser is told", { skip, timeout: 60_000 }, async () => {
  const { page, context, faults } = await newPage(browser);
  page.setDefaultTimeout(15_000);
  await context.addInitScript(pushStandIn, deviceKeys());
  await context.addInitScript(() => (globalThis.answer = "denied"));
  await register(page, cluster, `push-no-${Date.now()}@example.com`, "Ida");
  await page.evaluate(() => navigator.serviceWorker.ready.then(() => undefined));
  await page.getByRole("navigation").getByRole("link", { name: "Settings" }).click();
  await page.locator(".links").getByRole("link", { name: "Notifications" }).click();
  await page.getByRole("button", { name: "Turn on" }).click();
  await page.getByText("You have forbidden notifications for this page.").waitFor();
  assert.deepEqual(faults, []);
  await context.close();
});

test("words and buttons, for a person who wants them", { skip, timeout: 120_000 }, async (t) => {
  const { page, context, faults } = await newPage(browser);
  page.setDefaultTimeout(15_000);
  await context.addInitScript(AXE);
  await context.addInitScript(pushStandIn, deviceKeys());
  await context.addInitScript(() => (globalThis.permission = "granted"));
  const owner = (await cluster.user("owner")).client;
  const scope = { scope: "calendar.read", description: "sees your calendar", sensitivity: "low" };
  const harmful = { scope: "money.send", description: "sends your money", sensitivity: "high" };
  const options = await cluster.agent("Deployer", owner, { tools: [], permission_scopes: [scope, harmful] });
  const agent = new Agent(options);
  const asked = [];
  agent.on("message", async (ctx) => {
    if (ctx.text === "ask") asked.push(await ctx.approve("deploy", { version: "1.4.2" }, { text: "Deploy 1.4.2?", key: "short" }));
    if (ctx.text === "long") asked.push(await ctx.approve("deploy", { notes: "x".repeat(300) }, { text: "Deploy?", key: "long" }));
    if (ctx.text === "low") asked.push(await ctx.requestGrant(["calendar.read"], { reason: "to find a day" }));
    if (ctx.text === "high") asked.push(await ctx.requestGrant(["money.send"], { reason: "to pay" }));
    if (ctx.text === "hello") await ctx.reply(`**Hello** ${"and so on ".repeat(40)}`);
    if (ctx.text === "again") await ctx.reply("Short words");
  });
  const stopping = new AbortController();
  const running = agent.run({ signal: stopping.signal });
  const { userId } = await register(page, cluster, `words-${Date.now()}@example.com`, "Ida");
  await openAgent(page, cluster, options.agentId);
  const conversation = new URL(page.url()).hash.split("/")[2];

  const wants = async (label) => {
    await page.goto(`${appOf(cluster)}#/settings/notifications`);
    await page.getByLabel(label, { exact: true }).check();
  };
  await page.goto(`${appOf(cluster)}#/settings/notifications`);
  await page.getByRole("button", { name: "Turn on" }).click();
  await page.getByText("Notifications are on.").waitFor();
  await page.getByRole("radio", { name: "That something waits", checked: true }).waitFor();
  await isAccessible(page, "what notifications show");
  const replaced = context.waitForEvent("serviceworker", (worker) => worker.url().endsWith("/app/reading-sw.js"));
  await wants("Who writes, and the first words");
  await replaced;

  const tell = async (words, count) => {
    await page.goto(`${appOf(cluster)}#/c/${conversation}`);
    await say(page, words);
    await page.locator("article.message").nth(count).waitFor();
  };
  await tell("hello", 1);
  const told = { event: "message.created", event_id: "e", conversation_id: conversation, count: 1 };
  await t.test("the first words of a message", async () => {
    const { push, shows } = await pushedTo(context, page, cluster);
    await push(told);
    const { title, body, actions } = await shows(conversation);
    assert.equal(title, "Deployer");
    assert.ok(body.startsWith("**Hello** and so on") && body.length === 200 && body.endsWith("…"), body);
    assert.deepEqual(actions, []);
  });

  await tell("ask", 3);
  const approval = { event: "approval.requested", event_id: "e2", conversation_id: conversation, count: 1 };
  await t.test("an approval has no buttons without a further wish", async () => {
    const { push, shows } = await pushedTo(context, page, cluster);
    await push({ ...approval, id: asked[0].approval_id });
    const { title, body, actions } = await shows(conversation);
    assert.equal(title, "Deployer asks for your approval");
    assert.equal(body, 'Deploy 1.4.2?\n{"version":"1.4.2"}');
    assert.deepEqual(actions, []);
  });

  await wants("The same, with Approve and Deny");
  await t.test("what was not shown is not decided", async () => {
    const { push, shows, press } = await pushedTo(context, page, cluster);
    await push({ ...approval, id: asked[0].approval_id });
    const notification = await shows(asked[0].approval_id);
    const { question } = notification.data;
    const digest = question.digest.replace(/^./, (sign) => (sign === "A" ? "B" : "A"));
    const other = { ...notification, data: { ...notification.data, question: { ...question, digest } } };
    await press(other, "approve");
    await shows(asked[0].approval_id, ({ body }) => body === "This was not decided. Open the app.");
    // An approval that was decided has no buttons in the next test.
  });

  await t.test("a press approves what is shown whole", async () => {
    const { push, shows, press } = await pushedTo(context, page, cluster);
    await push({ ...approval, id: asked[0].approval_id });
    const notification = await shows(asked[0].approval_id);
    assert.deepEqual(notification.actions, [{ action: "deny", title: "Deny" }, { action: "approve", title: "Approve" }]);
    assert.equal(notification.data.hash, "#/approvals");
    await press(notification, "approve");
    await shows(asked[0].approval_id, ({ body }) => body === "You have approved it.");
  });

  await tell("long", 5);
  await t.test("a question that does not fit can be denied alone", async () => {
    const { push, shows, press } = await pushedTo(context, page, cluster);
    const id = asked[1].approval_id;
    await push({ ...approval, id });
    const notification = await shows(id);
    const { body, actions } = notification;
    assert.ok(body.startsWith('Deploy?\n{"notes":"xxx') && body.length === 200, body);
    assert.deepEqual(actions, [{ action: "deny", title: "Deny" }]);
    // A browser that kept an earlier button gets nowhere with it.
    await press(notification, "approve");
    await shows(id, ({ body }) => body === "This was not decided. Open the app.");
    await press(notification, "deny");
    await shows(id, ({ body }) => body === "You have denied it.");
  });

  await tell("low", 6);
  await t.test("a permission that can do little harm is given by a press", async () => {
    const { push, shows, press } = await pushedTo(context, page, cluster);
    const id = asked[2].grant_id;
    await push({ event: "grant.requested", event_id: "e3", conversation_id: conversation, id, count: 1 });
    const notification = await shows(id);
    assert.equal(notification.title, "Deployer asks for a permission:");
    assert.equal(notification.body, "to find a day\ncalendar.read (can do little harm)");
    await press(notification, "deny");
    await shows(id, ({ body }) => body === "You have denied it.");
  });

  await tell("high", 7);
  await t.test("a permission that can do great harm can be denied alone", async () => {
    const { push, shows, press } = await pushedTo(context, page, cluster);
    const id = asked[3].grant_id;
    await push({ event: "grant.requested", event_id: "e4", conversation_id: conversation, id, count: 1 });
    const notification = await shows(id);
    assert.deepEqual(notification.actions, [{ action: "deny", title: "Deny" }]);
    await press(notification, "approve");
    await shows(id, ({ body }) => body === "This was not decided. Open the app.");
  });

  await t.test("a push that the reader cannot open says that something waits", async () => {
    const { push, shows } = await pushedTo(context, page, cluster);
    await push({ ...approval, id: userId, conversation_id: userId });
    const { title, body, actions } = await shows(userId);
    assert.deepEqual([title, body, actions], ["Blindpipe", "An agent asks for your approval.", []]);
  });

  await t.test("a sign-out takes the words away", async () => {
    const reader = context.serviceWorkers().find((each) => each.url().endsWith("/app/reading-sw.js"));
    await page.goto(`${appOf(cluster)}#/settings`);
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Go on" }).click();
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
    // The other worker may wait until this one has ended what it does. Until then this one reads nothing either.
    await until(page, async () => {
      const { waiting, active } = await navigator.serviceWorker.getRegistration("/app");
      return (waiting ?? active).scriptURL.endsWith("/app/sw.js");
    });
    const read = () => reader.evaluate((pushed) => globalThis.reader.read(pushed), told);
    const asked = () => read().catch((error) => (/has been closed/.test(error) ? null : error));
    let words = await asked();
    // The browser may end and start a worker at any time.
    while (/Service worker restarted/.test(words)) words = await asked();
    assert.equal(words, null);
  });
  stopping.abort();
  await running;
  assert.deepEqual(faults, []);
  await context.close();
});

/** The worker's file in a world of its own. */
function worker({ languages = ["en-GB"], pages = [] } = {}) {
  const listeners = {};
  const shown = [];
  const opened = [];
  const world = {
    addEventListener: (name, listener) => (listeners[name] = listener),
    skipWaiting: () => {},
    navigator: { languages },
    location: { origin: "https://own.test" },
    clients: { matchAll: async () => pages, openWindow: async (url) => opened.push(url), claim: async () => {} },
    registration: { showNotification: async (title, options) => shown.push({ title, ...options }) },
    caches: {},
    encodeURIComponent,
    URL,
  };
  vm.runInNewContext(WORKER, world);
  const tell = async (name, event) => {
    let work;
    listeners[name]({ ...event, waitUntil: (promise) => (work = promise) });
    await work;
  };
  return {
    shown,
    opened,
    push: (content) => tell("push", { data: { json: () => JSON.parse(content) } }),
    press: (notification) => tell("notificationclick", { notification: { close: () => {}, ...notification } }),
  };
}

test("the worker says that something waits, and never what", async () => {
  const english = worker();
  await english.push(JSON.stringify({ event: "message.created", event_id: "e", conversation_id: "c/1", count: 2 }));
  assert.equal(english.shown[0].body, "There is a new message.");
  assert.equal(english.shown[0].tag, "c/1");
  await english.press(english.shown[0]);
  await english.push(JSON.stringify({ event: "of.a.newer.build", event_id: "e", count: 1 }));
  assert.equal(english.shown[1].body, "Something waits for you.");
  await english.push("no JSON");
  assert.equal(english.shown[2].body, "Something waits for you.");
  assert.deepEqual(english.opened, ["/app#/c/c%2F1"]);

  const german = worker({ languages: ["fr", "de-AT"] });
  await german.push(JSON.stringify({ event: "approval.requested", event_id: "e", conversation_id: "c", id: "a", count: 1 }));
  assert.equal(german.shown[0].body, "Ein Agent bittet um Ihre Zustimmung.");
  await german.press(german.shown[0]);
  assert.deepEqual(german.opened, ["/app#/approvals"]);
});

test("a page that is looked at has no notification, and one that is open is shown", async () => {
  const told = [];
  const page = { focused: true, focus: async () => {}, postMessage: (message) => told.push(message.go) };
  const seen = worker({ pages: [page] });
  await seen.push(JSON.stringify({ event: "message.created", event_id: "e", conversation_id: "c", count: 1 }));
  assert.deepEqual(seen.shown, []);
  page.focused = false;
  await seen.push(JSON.stringify({ event: "key.device_added", event_id: "e", count: 1 }));
  await seen.press(seen.shown[0]);
  assert.deepEqual(told, ["#/settings/devices"]);
  assert.deepEqual(seen.opened, []);
});

// Notifications. Headless Chromium has no push service, so stand-ins give subscriptions and show what the worker does.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createECDH, randomBytes } from "node:crypto";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import vm from "node:vm";
import { devCluster } from "@blindpipe/client/testing";
import { AXE, findBrowser, isAccessible, newPage, register, startBrowser, until } from "./support.mjs";

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

/** In the page, before its scripts: a push service that gives one address, and a person who agrees. */
function standIn(keys) {
  const kept = "stand-in-subscription";
  const read = () => {
    const key = localStorage.getItem(kept);
    if (key === null) return null;
    const bytes = Uint8Array.from(key.split(","), Number);
    return {
      endpoint: "http://127.0.0.1:9/a-secret-address",
      options: { applicationServerKey: bytes.buffer },
      toJSON: () => ({ endpoint: "http://127.0.0.1:9/a-secret-address", keys }),
      unsubscribe: async () => (localStorage.removeItem(kept), true),
    };
  };
  PushManager.prototype.getSubscription = async () => read();
  PushManager.prototype.subscribe = async ({ applicationServerKey }) => {
    localStorage.setItem(kept, [...applicationServerKey].join());
    return read();
  };
  Object.defineProperty(Notification, "permission", { get: () => globalThis.permission ?? "default" });
  Notification.requestPermission = async () => (globalThis.permission = globalThis.answer ?? "granted");
}

function deviceKeys() {
  const pair = createECDH("prime256v1");
  return { p256dh: pair.generateKeys("base64url"), auth: randomBytes(16).toString("base64url") };
}

for (const [locale, words] of [
  ["en-GB", { settings: "Settings", page: "Notifications", off: "Notifications are off.", on: "Notifications are on.", turnOn: "Turn on", turnOff: "Turn off" }],
  ["de-DE", { settings: "Einstellungen", page: "Mitteilungen", off: "Mitteilungen sind aus.", on: "Mitteilungen sind an.", turnOn: "Einschalten", turnOff: "Ausschalten" }],
]) {
  test(`a person turns notifications on and off (${locale})`, { skip, timeout: 90_000 }, async () => {
    const { page, context, faults } = await newPage(browser);
    page.setDefaultTimeout(15_000);
    await context.addInitScript(AXE);
    await context.addInitScript(standIn, deviceKeys());
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
  await context.addInitScript(standIn, deviceKeys());
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

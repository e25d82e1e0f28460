// A conversation of 10,000 messages: the page stays small, and the reader stays where they read.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { newUlid } from "@blindpipe/client/e2ee";
import { devCluster } from "@blindpipe/client/testing";
import { appOf, AXE, findBrowser, isAccessible, newPage, register, startBrowser, until } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";
const EARLIER = 10_000;
const PAGE = 100;
const MAX_ARTICLES = 80;
/** A busy machine draws late; a list that draws all its rows takes seconds. */
const MAX_MEDIAN_FRAME_MS = 100;

let cluster;
let browser;

before(async () => {
  if (!program) return;
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
});

after(() => browser?.close());

/** Puts messages of before the first real one into the history. Nobody can open them. */
async function prolong(page, conversationId, sender) {
  const line = { delayMs: 0 };
  await page.route(/\/conversations\/[^/]+\/messages\?/, async (route) => {
    const url = new URL(route.request().url());
    const cursor = url.searchParams.get("cursor");
    let body = { data: [], refs: [], refs_truncated: false, next_cursor: null };
    if (cursor === null) body = await (await route.fetch()).json();
    const from = cursor === null ? 0 : Number(cursor.slice("earlier-".length));
    const end = Math.min(EARLIER, from + PAGE - body.data.length);
    for (let at = from; at < end; at++) {
      body.data.push({
        message_id: newUlid(Date.now() - 86_400_000 - at * 1000),
        conversation_id: conversationId,
        seq: -at,
        sender: { type: "user", id: sender },
        payload: { type: "text", text: `earlier ${at}` },
        created_at: new Date(Date.now() - 86_400_000 - at * 1000).toISOString(),
        client_message_id: null,
      });
    }
    await new Promise((resolve) => setTimeout(resolve, cursor === null ? 0 : line.delayMs));
    body.next_cursor = end < EARLIER ? `earlier-${end}` : null;
    await route.fulfill({ json: body });
  });
  return line;
}

/** Runs in the page: the uppermost article in view, and where it stands. */
function firstInView() {
  const view = document.querySelector(".messages");
  const { top } = view.getBoundingClientRect();
  for (const slot of view.querySelectorAll(".slot")) {
    const from = slot.getBoundingClientRect().top - top;
    if (from >= 0) return { key: slot.dataset.key, from };
  }
  return null;
}

/** Runs in the page: where an article stands now. */
function topOf(key) {
  const slot = document.querySelector(`[data-key="${key}"]`);
  return slot && slot.getBoundingClientRect().top - document.querySelector(".messages").getBoundingClientRect().top;
}

/** Runs in the page: scrolls, and waits until that is drawn. */
async function scrollTo(top) {
  document.querySelector(".messages").scrollTop = top;
  for (let frame = 0; frame < 3; frame++) await new Promise((resolve) => requestAnimationFrame(resolve));
}

/** Runs in the page: loads all older pages, by scrolling to the beginning again and again. */
async function loadAll() {
  const view = document.querySelector(".messages");
  let most = 0;
  while (view.querySelector(".inside > button")) {
    view.scrollTop = view.scrollTop === 0 ? 1 : 0;
    await new Promise((resolve) => requestAnimationFrame(resolve));
    most = Math.max(most, view.querySelectorAll("article").length);
  }
  return most;
}

/** Runs in the page: through the whole list; the times between frames, and the most articles at once. */
async function scrollThrough(steps) {
  const view = document.querySelector(".messages");
  const frames = [];
  let most = 0;
  let before = performance.now();
  for (let step = 0; step <= steps; step++) {
    view.scrollTop = ((view.scrollHeight - view.clientHeight) * step) / steps;
    await new Promise((resolve) => requestAnimationFrame(resolve));
    const now = performance.now();
    frames.push(now - before);
    before = now;
    most = Math.max(most, view.querySelectorAll("article").length);
  }
  frames.sort((one, other) => one - other);
  return { median: frames[frames.length >> 1], worst: frames.at(-1), most };
}

test("a reader goes through 10,000 messages", { skip, timeout: 120_000 }, async (t) => {
  const { page, context, faults } = await newPage(browser, { serviceWorkers: "block" });
  page.setDefaultTimeout(15_000);
  await context.addInitScript(AXE);
  const bob = (await cluster.user("bob")).client;
  const { userId } = await register(page, cluster, `reader-${Date.now()}@example.com`, "Reader");
  const talk = await bob.openDirect(userId);
  for (let at = 0; at < 30; at++) await talk.send(`real ${at} ${"and some more words ".repeat((at * 7) % 23)}`);
  const line = await prolong(page, talk.id, bob.userId);
  await page.goto(`${appOf(cluster)}#/c/${talk.id}`);
  await page.locator("article", { hasText: "real 29" }).waitFor();

  await t.test("it begins at the newest message", async () => {
    const view = page.locator(".messages");
    await until(page, () => {
      const { scrollHeight, scrollTop, clientHeight } = document.querySelector(".messages");
      return scrollHeight - scrollTop - clientHeight < 2 && scrollTop > 0;
    });
    assert.ok((await view.locator("article").count()) <= MAX_ARTICLES);
  });

  await t.test("older messages come without a jump", async () => {
    line.delayMs = 300;
    for (const top of [300, 150]) {
      const pages = page.waitForResponse((response) => /cursor=earlier-/.test(response.url()));
      await page.evaluate(scrollTo, top);
      const before = await page.evaluate(firstInView);
      await pages;
      await until(page, () => document.querySelector(".messages").scrollTop > 2000);
      const now = await page.evaluate(topOf, before.key);
      assert.ok(now !== null && Math.abs(now - before.from) <= 2, `${before.from} px became ${now} px`);
    }
  });

  await t.test("the page stays small and quick", async (t) => {
    line.delayMs = 0;
    const loading = await page.evaluate(loadAll);
    const { median, worst, most } = await page.evaluate(scrollThrough, 120);
    t.diagnostic(`frames: median ${median.toFixed(1)} ms, worst ${worst.toFixed(1)} ms; articles: ${most}`);
    assert.ok(Math.max(loading, most) <= MAX_ARTICLES, `${loading} and ${most} articles`);
    assert.ok(median < MAX_MEDIAN_FRAME_MS, `${median} ms a frame`);
    await page.locator("article", { hasText: "real 29" }).waitFor();
  });

  await t.test("a keyboard goes from message to message, and a screen reader knows where it is", async () => {
    const last = page.locator(".feed article").last();
    assert.equal(await last.getAttribute("aria-setsize"), String(EARLIER + 30));
    assert.equal(await last.getAttribute("aria-posinset"), String(EARLIER + 30));
    await last.focus();
    await page.keyboard.press("PageUp");
    await page.keyboard.press("PageUp");
    const place = () => document.activeElement.getAttribute("aria-posinset");
    await until(page, (wanted) => document.activeElement.getAttribute("aria-posinset") === wanted, String(EARLIER + 28));
    // The focus is not lost with a message that leaves the view.
    await page.evaluate(scrollTo, 200_000);
    assert.equal(await page.evaluate(place), String(EARLIER + 28));
    await isAccessible(page, "a long conversation");
  });

  await t.test("a message that comes meanwhile moves nothing, and is said", async () => {
    const before = await page.evaluate(firstInView);
    await talk.send("said by a screen reader");
    await page.locator("[role=log]", { hasText: "said by a screen reader" }).waitFor({ state: "attached" });
    assert.ok(Math.abs((await page.evaluate(topOf, before.key)) - before.from) <= 2);
    await page.evaluate(scrollTo, 1e9);
    await talk.send("followed at the end");
    await page.locator("article", { hasText: "followed at the end" }).waitFor();
    await until(page, () => {
      const { scrollHeight, scrollTop, clientHeight } = document.querySelector(".messages");
      return scrollHeight - scrollTop - clientHeight < 2;
    });
  });
  assert.deepEqual(faults, []);
  await context.close();
});

test("a burst of messages costs few calls, and a page that nobody sees marks none as read", { skip, timeout: 60_000 }, async () => {
  const { page, context, faults } = await newPage(browser, { serviceWorkers: "block" });
  page.setDefaultTimeout(15_000);
  await context.addInitScript(() => {
    let state = "visible";
    Object.defineProperty(document, "visibilityState", { get: () => state });
    globalThis.turn = (next) => {
      state = next;
      document.dispatchEvent(new Event("visibilitychange"));
    };
  });
  const carol = (await cluster.user("carol")).client;
  const { userId } = await register(page, cluster, `burst-${Date.now()}@example.com`, "Reader");
  const talk = await carol.openDirect(userId);
  await talk.send("the first");
  const read = () => page.waitForResponse((response) => response.url().endsWith("/read"));
  const firstRead = read();
  await page.goto(`${appOf(cluster)}#/c/${talk.id}`);
  await firstRead;
  const calls = { reads: 0, lists: 0 };
  page.on("request", (request) => {
    const { pathname } = new URL(request.url());
    if (pathname.endsWith("/read")) calls.reads += 1;
    if (pathname === "/conversations") calls.lists += 1;
  });

  const began = Date.now();
  for (let n = 0; n < 30; n++) await talk.send(`burst ${n}`);
  await page.locator("article", { hasText: "burst 29" }).waitFor();
  const seconds = (Date.now() - began) / 1000;
  assert.ok(calls.reads <= 2 + seconds, `${calls.reads} marks in ${seconds} s`);
  assert.ok(calls.lists <= 2 + seconds / 2, `${calls.lists} lists in ${seconds} s`);

  // The list says what the service counts: nothing unread after the burst, and one message that nobody has seen.
  const listSays = (count) =>
    page.waitForResponse(async (response) => {
      if (new URL(response.url()).pathname !== "/conversations") return false;
      const { data } = await response.json();
      return data.find(({ conversation_id: id }) => id === talk.id)?.unread_count === count;
    });
  await listSays(0);
  const marks = calls.reads;
  await page.evaluate(() => globalThis.turn("hidden"));
  const counted = listSays(1);
  await talk.send("unseen");
  await counted;
  await page.locator("article", { hasText: "unseen" }).waitFor();
  assert.equal(calls.reads, marks);
  const marked = read();
  await page.evaluate(() => globalThis.turn("visible"));
  await marked;
  assert.deepEqual(faults, []);
  await context.close();
});

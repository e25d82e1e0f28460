// A line that goes away: what was read stays readable, and what is written goes out later, each once.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { devCluster } from "@blindpipe/client/testing";
import { appOf, findBrowser, newPage, register, say, startBrowser } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";

let cluster;
let browser;

before(async () => {
  if (!program) return;
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
});

after(() => browser?.close());

/** What a person has received, the earliest first. */
async function received(conversation) {
  const texts = [];
  for await (const { opened } of conversation.history()) texts.unshift(opened?.content.text);
  return texts;
}

test("a person writes while the line is away", { skip, timeout: 90_000 }, async (t) => {
  const { page, context, faults } = await newPage(browser, { serviceWorkers: "block" });
  page.setDefaultTimeout(20_000);
  const bob = (await cluster.user("bob")).client;
  const { userId } = await register(page, cluster, `offline-${Date.now()}@example.com`, "Ida");
  const talk = await bob.openDirect(userId);
  await talk.send("before the tunnel");
  await page.goto(`${appOf(cluster)}#/c/${talk.id}`);
  await page.locator("article", { hasText: "before the tunnel" }).waitFor();

  await t.test("it is read and written on, and goes out in order", async () => {
    await context.setOffline(true);
    await page.getByText("Connecting…").waitFor();
    await page.locator("article", { hasText: "before the tunnel" }).waitFor();
    for (const text of ["one", "two", "three"]) await say(page, text);
    await page.locator("article.outgoing", { hasText: "three" }).getByText("waits for the connection").waitFor();
    await context.setOffline(false);
    await page.locator(".feed article.own", { hasText: "three" }).waitFor();
    assert.equal(await page.locator("article.outgoing").count(), 0);
    assert.deepEqual(await received(talk), ["before the tunnel", "one", "two", "three"]);
  });

  await t.test("a message whose answer was lost is there once", async () => {
    const stored = new Promise((resolve) => {
      void page.route("**/messages", async (route) => {
        await route.fetch();
        await context.setOffline(true);
        await route.abort();
        resolve();
      }, { times: 1 });
    });
    await say(page, "four");
    await stored;
    await say(page, "five");
    await page.locator("article.outgoing", { hasText: "five" }).getByText("waits for the connection").waitFor();
    await context.setOffline(false);
    await page.locator(".feed article.own", { hasText: "five" }).waitFor();
    assert.deepEqual((await received(talk)).slice(-2), ["four", "five"]);
    assert.equal(await page.locator(".feed article.own", { hasText: "four" }).count(), 1);
  });

  await t.test("a message that the service refuses is shown so, and can be discarded", async () => {
    const refusal = { error: { code: "FORBIDDEN", message: "not any more", params: {} }, request_id: "r" };
    await page.route("**/messages", (route) => route.fulfill({ status: 403, json: refusal }), { times: 1 });
    await say(page, "six");
    const six = page.locator("article.outgoing", { hasText: "six" });
    await six.getByText("not any more").waitFor();
    await six.getByRole("button", { name: "Try again" }).click();
    await page.locator(".feed article.own", { hasText: "six" }).waitFor();
    assert.equal((await received(talk)).at(-1), "six");
  });
  assert.deepEqual(faults, []);
  await context.close();
});

test("a page that is opened without a line waits for it", { skip, timeout: 60_000 }, async () => {
  const { page, context, faults } = await newPage(browser);
  page.setDefaultTimeout(20_000);
  await register(page, cluster, `shell-${Date.now()}@example.com`, "Ida");
  await page.evaluate(() => navigator.serviceWorker.ready.then(() => undefined));
  const kept = await page.evaluate(async () => {
    const cache = await caches.open("shell");
    return (await cache.keys()).map(({ url }) => new URL(url).pathname);
  });
  assert.ok(kept.includes("/app"));
  assert.deepEqual(kept.filter((path) => !path.startsWith("/app")), [], "the shell and nothing else is kept");
  await context.setOffline(true);
  await page.reload();
  await page.getByText("The service cannot be reached.").waitFor();
  await context.setOffline(false);
  await page.getByRole("heading", { name: "Conversations" }).waitFor();
  assert.deepEqual(faults, []);
  await context.close();
});

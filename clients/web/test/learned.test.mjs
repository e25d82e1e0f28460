// A browser's knowledge survives a reload, row by row, and stays small.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { devCluster } from "@blindpipe/client/testing";
import { appOf, findBrowser, newPage, register, startBrowser } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";
const DAY_MS = 24 * 3_600_000;

let cluster;
let browser;

before(async () => {
  if (!program) return;
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
});

after(() => browser?.close());

/** In the page: names of values, sections and names of what was learned, and keys of messages that were shown. */
function rows([name, value, key] = []) {
  const settled = (request) =>
    new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
  const opened = ["blindpipe", "blindpipe-learned"].map((database) => settled(indexedDB.open(database)));
  return Promise.all(opened).then(async (databases) => {
    const stores = { values: databases[0], entries: databases[1], handled: databases[1] };
    const named = (store, mode) => stores[store].transaction(store, mode).objectStore(store);
    const marks = value?.marks && new Map(value.marks);
    if (name) await settled(named(name, "readwrite").put({ ...value, ...(marks && { marks }) }, key));
    const [values, entries, handled] = await Promise.all(
      Object.keys(stores).map((store) => settled(named(store, "readonly").getAllKeys())),
    );
    for (const database of databases) database.close();
    const sections = [...new Set(entries.map(([, section]) => section))].sort();
    return { values, sections, names: entries.map((key) => key[2]), handled };
  });
}

async function until(look) {
  for (const end = Date.now() + 10_000; Date.now() < end; await new Promise((resolve) => setTimeout(resolve, 50))) {
    const found = await look();
    if (found) return found;
  }
  throw new Error("it did not come");
}

test("what a browser has learned and shown is kept in rows", { skip, timeout: 90_000 }, async (t) => {
  const { page, context, faults } = await newPage(browser);
  page.setDefaultTimeout(10_000);
  const { userId } = await register(page, cluster, `rows-${Date.now()}@example.com`, "Rosa");
  const ben = await cluster.user("ben");
  const direct = await ben.client.openDirect(userId);
  const shown = async (count) => until(async () => {
    const now = await page.evaluate(rows);
    return now.handled.length === count && now;
  });

  await t.test("a message that was shown has a row", async () => {
    await direct.send("Good morning");
    const { handled } = await shown(1);
    assert.equal(handled[0][0], userId);
    await until(async () => (await page.evaluate(rows)).sections.join() === "marks,pins");
    await page.reload();
    await page.locator(".list a").first().click();
    await page.locator(".feed").getByText("Good morning").waitFor();
    await shown(1);
  });

  await t.test("one of more than 31 days ago goes with the next one", async () => {
    const old = [userId, Date.now() - 32 * DAY_MS, "a", "b", "c"];
    assert.equal((await page.evaluate(rows, ["handled", {}, old])).handled.length, 2);
    await direct.send("Good evening");
    const { handled } = await until(async () => {
      const now = await page.evaluate(rows);
      return now.handled.length === 2 && !now.handled.some(([, at]) => at === old[1]) && now;
    });
    assert.ok(handled.every(([, at]) => at > Date.now() - DAY_MS));
  });

  await t.test("what an earlier version has kept is taken over", async () => {
    const marks = [["01M8K9XZBWB1CXBS89AGBEQSRZ", { epoch: 3, time: 1 }]];
    await page.evaluate(rows, ["values", { pins: null, marks }, `learned:${userId}`]);
    await page.reload();
    // The old entry goes once its rows are kept.
    await until(async () => {
      const { names, values } = await page.evaluate(rows);
      const isTaken = names.includes("01M8K9XZBWB1CXBS89AGBEQSRZ");
      return isTaken && !values.some((name) => name.startsWith("learned:"));
    });
  });

  await t.test("a sign-out leaves no row", async () => {
    await page.goto(`${appOf(cluster)}#/settings`);
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Go on" }).click();
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
    const left = await until(async () => {
      const now = await page.evaluate(rows);
      return now.handled.length === 0 && now;
    });
    assert.deepEqual(left.names, []);
    assert.ok(!left.values.some((name) => name.includes(userId)), "no key is left");
  });

  assert.deepEqual(faults, []);
  await context.close();
});

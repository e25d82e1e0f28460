// Habits of browsers: several tabs of one sign-in, and an app that can be installed.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { devCluster } from "@blindpipe/client/testing";
import { appOf, findBrowser, newPage, register, startBrowser } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";
const TABS = 4;
const ROUNDS = 3;

let cluster;
let browser;

before(async () => {
  if (!program) return;
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
});

after(() => browser?.close());

test("tabs that renew one sign-in at once all stay signed in", { skip, timeout: 90_000 }, async () => {
  const { page, context, faults } = await newPage(browser, { serviceWorkers: "block" });
  page.setDefaultTimeout(20_000);
  await register(page, cluster, `tabs-${Date.now()}@example.com`, "Tia");
  const renewals = [];
  context.on("response", (answer) => {
    if (answer.url().endsWith("/auth/refresh")) renewals.push(answer.status());
  });
  const tabs = [page];
  while (tabs.length < TABS) tabs.push(await context.newPage());
  for (let round = 0; round < ROUNDS; round++) {
    // A cookie is good for a single renewal, and a second one with it would end the sign-in.
    await Promise.all(tabs.map((tab) => tab.goto(`${appOf(cluster)}?round=${round}`)));
    await Promise.all(tabs.map((tab) => tab.getByRole("heading", { name: "Conversations" }).waitFor()));
  }
  assert.ok(renewals.length >= TABS * ROUNDS, `${renewals.length} renewals`);
  assert.deepEqual([...new Set(renewals)], [200]);
  assert.deepEqual(faults, []);
});

test("the app can be installed", { skip, timeout: 60_000 }, async () => {
  const { page, context } = await newPage(browser);
  await page.goto(appOf(cluster));
  const devtools = await context.newCDPSession(page);
  const { url, errors, data } = await devtools.send("Page.getAppManifest");
  assert.deepEqual([new URL(url).pathname, errors], ["/app/manifest.webmanifest", []]);
  const { start_url, scope, display, icons } = JSON.parse(data);
  assert.deepEqual([start_url, scope, display], ["/app", "/app", "standalone"]);
  for (const { src, type } of icons) {
    const icon = await page.request.get(new URL(src, url).href);
    assert.deepEqual([icon.status(), icon.headers()["content-type"]], [200, type]);
  }
});

// A node is killed while an agent writes. It runs after the other files, which use the same nodes.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { Agent } from "@blindpipe/client/agent";
import { devCluster } from "@blindpipe/client/testing";
import { findBrowser, newPage, openAgent, register, say, startBrowser, until } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";
const WORDS = Array.from({ length: 40 }, (_, n) => `word${n}`);
/** The whole answer takes two seconds, and the node dies in its first. */
const WORD_MS = 50;

let cluster;
let browser;

before(async () => {
  if (!program) return;
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
});

after(() => browser?.close());

test("a node dies while an agent writes, and the person has the whole message once", { skip, timeout: 90_000 }, async (t) => {
  const last = cluster.nodes.length - 1;
  assert.ok(last > 0, "person and agent are on nodes of their own");
  const owner = (await cluster.user("owner")).client;
  // The agent is on the last node, and the page on the first one.
  const options = await cluster.agent("Survivor", owner);
  const agent = new Agent(options);
  const written = new Map();
  agent.on("message", async (ctx) => {
    const stream = ctx.stream();
    for (const word of WORDS) {
      await stream.write(`${ctx.text}-${word} `);
      written.set(ctx.text, (written.get(ctx.text) ?? 0) + 1);
      await pause(WORD_MS);
    }
    await stream.end();
  });
  const stopping = new AbortController();
  const running = agent.run({ signal: stopping.signal });
  const { page, context, faults } = await newPage(browser, { serviceWorkers: "block" });
  page.setDefaultTimeout(30_000);
  await register(page, cluster, `witness-${Date.now()}@example.com`, "Wanda");
  await openAgent(page, cluster, options.agentId);

  for (const [whose, node, key] of [["the agent's", last, "first"], ["the person's", 0, "second"]]) {
    await t.test(`${whose} node`, async () => {
      await say(page, key);
      await page.locator("article.live", { hasText: `${key}-word3` }).waitFor();
      cluster.kill(node);
      assert.ok(written.get(key) < WORDS.length, "it was in the middle");
      const whole = WORDS.map((word) => `${key}-${word}`).join(" ");
      const answers = page.locator(".feed article.message:not(.own)", { hasText: `${key}-word0` });
      await answers.filter({ hasText: whole }).waitFor();
      // The page is connected again, and has what was missed meanwhile.
      await page.getByText("Connecting…").waitFor({ state: "detached" });
      await until(page, () => document.querySelector("article.live") === null);
      assert.equal(await answers.count(), 1);
      // A reload reads what the service has kept.
      await page.reload();
      await answers.filter({ hasText: whole }).waitFor();
      assert.equal(await answers.count(), 1);
    });
  }

  stopping.abort();
  await running;
  assert.deepEqual(faults.filter((fault) => !/WebSocket connection to/.test(fault)), []);
  await context.close();
});

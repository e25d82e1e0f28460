// A person registers in the app of a running cluster and talks with an agent: node release.mjs FOLDER AGENT
import assert from "node:assert/strict";
import { devCluster } from "@blindpipe/client/testing";
import { findBrowser, newPage, openAgent, register, say, startBrowser } from "./support.mjs";

const [dir, agentId] = process.argv.slice(2);
const cluster = await devCluster({ dir });
const browser = await startBrowser(findBrowser(), cluster.nodes[0]);
try {
  const { page, faults } = await newPage(browser);
  await register(page, cluster, `guest-${Date.now()}@example.com`, "Guest");
  await openAgent(page, cluster, agentId);
  await say(page, "Hello from the app");
  await page.locator("article.message:not(.own)", { hasText: "Hello from the app" }).waitFor();
  assert.deepEqual(faults, []);
} finally {
  await browser.close();
}

// Agents in the languages of the other clients: the examples themselves, each as its own process, seen by a person in
// the app. The agents of the other files are of TypeScript.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { devCluster } from "@blindpipe/client/testing";
import { findBrowser, newPage, openAgent, register, say, startBrowser } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";
const ROOT = fileURLToPath(new URL("../../..", import.meta.url));
const TARGET = dirname(process.env.BLINDPIPE_DEVCLUSTER ?? join(ROOT, "target/debug/devcluster"));
const PYTHON = process.env.BLINDPIPE_PYTHON ?? join(ROOT, ".dev/clients-python/bin/python");
const ONLINE_TIMEOUT_MS = 20_000;
/** The examples write twenty words a second: long enough to be seen while they write. */
const QUESTION = "why ".repeat(30).trim();

const LANGUAGES = [
  { name: "Python", program: PYTHON, parameters: [join(ROOT, "examples/python/streaming.py")] },
  { name: "Rust", program: join(TARGET, "examples/agent-streaming"), parameters: [] },
];
const built = LANGUAGES.filter((language) => existsSync(language.program));
for (const missing of LANGUAGES.filter((language) => !built.includes(language))) {
  const stars = "*".repeat(76);
  const words = `NO AGENT OF ${missing.name.toUpperCase()} WAS TESTED IN THE APP: ${missing.program} is not there.`;
  console.log(`\n  ${stars}\n  *  ${words}\n  ${stars}\n`);
}

let cluster;
let browser;
let agents = [];

before(async () => {
  if (!program) return;
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
});

after(async () => {
  for (const { child } of agents) child.kill("SIGKILL");
  await browser?.close();
});

/** Starts the example, and returns when it is online. */
async function start({ name, program, parameters }, owner) {
  const options = await cluster.agent(name, owner);
  const { authority } = cluster;
  const env = {
    ...process.env,
    BLINDPIPE_URL: options.url,
    BLINDPIPE_AGENT_ID: options.agentId,
    BLINDPIPE_TOKEN: options.token,
    BLINDPIPE_KEY: String(options.key),
    BLINDPIPE_CA: authority,
    SSL_CERT_FILE: authority,
    PYTHONPATH: join(ROOT, "clients/python/src"),
  };
  const child = spawn(program, parameters, { env, stdio: ["ignore", "ignore", "inherit"] });
  const agent = { name, agentId: options.agentId, child };
  agents.push(agent);
  for (const end = Date.now() + ONLINE_TIMEOUT_MS; ; ) {
    const { connections } = await owner.agents.get(options.agentId);
    if (connections.length > 0) return agent;
    assert.ok(child.exitCode === null && Date.now() < end, `${name} is online`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

test("a person sees agents of other languages write", { skip, timeout: 90_000 }, async (t) => {
  const { page, context, faults } = await newPage(browser, { serviceWorkers: "block" });
  page.setDefaultTimeout(15_000);
  const owner = (await cluster.user("owner")).client;
  const starting = Promise.all(built.map((language) => start(language, owner)));
  await register(page, cluster, `polyglot-${Date.now()}@example.com`, "Rosetta");
  await starting;
  for (const { name } of LANGUAGES) {
    const agent = agents.find((each) => each.name === name);
    await t.test(name, { skip: agent ? false : "it is not built" }, async () => {
      await openAgent(page, cluster, agent.agentId);
      await say(page, QUESTION);
      await page.locator("article.live", { hasText: "You asked: why" }).waitFor();
      const answer = page.locator(".feed article.message:not(.own)");
      await answer.filter({ hasText: `You asked: ${QUESTION} The answer is forty-two.` }).waitFor();
      assert.equal(await answer.count(), 1);
      assert.equal(await page.locator("article.live").count(), 0);
    });
  }
  assert.deepEqual(faults, []);
  await context.close();
});

// The rights of agents on this device: permissions, and tool calls that wait for a word.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import { devCluster } from "@blindpipe/client/testing";
import { appOf, AXE, findBrowser, isAccessible, newPage, openAgent, register, say, startBrowser, until } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";

const MANIFEST = {
  tools: [
    { name: "get_location", scope: "location:read" },
    { name: "copy_text", scope: "clipboard:write" },
  ],
  permission_scopes: [
    { scope: "location:read", sensitivity: "high" },
    { scope: "clipboard:write", sensitivity: "medium" },
  ],
};
const CALLS = {
  where: { tool: "get_location", scope: "location:read", arguments: {}, prompt: "To find\u202e a train" },
  copy: { tool: "copy_text", scope: "clipboard:write", arguments: { text: "safe\u202etxt.exe\u200b" } },
};
/** More than a call may wait. */
const TOO_LONG_MS = 31_000;

let cluster;
let browser;
let stopAgent = async () => {};

before(async () => {
  if (!program) return;
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
});

after(async () => {
  await stopAgent();
  await browser?.close();
});

/** An agent that asks for permissions and tools, and keeps the outcomes. */
async function startAgent(owner) {
  const options = await cluster.agent("Guide", owner, MANIFEST);
  const outcomes = new Map();
  const agent = new Agent(options);
  agent.on("message", async (ctx) => {
    if (ctx.text === "permit") {
      await ctx.requestGrant(["location:read", "clipboard:write"], { reason: "Trains\u202e near you" });
      return;
    }
    const [name, key] = ctx.text.split(" ");
    outcomes.set(key, await ctx.call(CALLS[name]));
  });
  const stopping = new AbortController();
  const running = agent.run({ signal: stopping.signal });
  stopAgent = async () => {
    stopping.abort();
    await running;
  };
  return { agentId: options.agentId, outcomes };
}

async function outcome(outcomes, key, seconds = 15) {
  for (const end = Date.now() + seconds * 1000; !outcomes.has(key); ) {
    if (Date.now() > end) throw new Error(`no outcome of ${key}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return outcomes.get(key);
}

/** The service refuses such a name, but it could lie: this one turns the words after it. */
async function plantName(page) {
  await page.route(/\/conversations(\/|\?|$)/, async (route) => {
    if (route.request().method() !== "GET") return route.fallback();
    const response = await route.fetch();
    const body = (await response.text()).replaceAll('"display_name":"Guide"', '"display_name":"Guide\u202egnihton"');
    return route.fulfill({ response, body });
  });
}

/** The element that has the focus, in words. */
const focused = (page) => page.evaluate(() => document.activeElement?.textContent);

const leftOfRing = (page) =>
  page.evaluate(() => parseInt(document.querySelector(".ring .left").getAttribute("stroke-dasharray"), 10));

test("agents ask for permissions and tools", { skip, timeout: 120_000 }, async (t) => {
  const owner = await cluster.user("owner");
  const { agentId, outcomes } = await startAgent(owner.client);
  const position = { latitude: 52.52, longitude: 13.4, accuracy: 30 };
  const { page, context, faults } = await newPage(browser, { serviceWorkers: "block", geolocation: position });
  page.setDefaultTimeout(10_000);
  await context.addInitScript(AXE);
  const { origin } = new URL(appOf(cluster));
  await context.grantPermissions(["geolocation", "clipboard-read", "clipboard-write"], { origin });
  await page.clock.install();
  await plantName(page);
  await register(page, cluster, `tools-${Date.now()}@example.com`, "Ada");
  await openAgent(page, cluster, agentId);
  const dialog = page.getByRole("dialog");

  await t.test("a permission is asked for in the approvals, and given", async () => {
    await say(page, "permit");
    await page.getByRole("link", { name: /Approvals/ }).locator(".count").waitFor();
    await page.getByRole("navigation").getByRole("link", { name: /Approvals/ }).click();
    await page.getByText("asks for a permission:").waitFor();
    await page.getByText("Trains\\u202e near you").waitFor();
    await page.locator("li", { hasText: "location:read" }).getByText("can do great harm").waitFor();
    await page.getByText("It holds until you take it back.").waitFor();
    await isAccessible(page, "a permission that is asked for");
    await page.getByRole("button", { name: "Approve" }).click();
    await page.getByText("Nothing waits for you.").waitFor();
    await openAgent(page, cluster, agentId);
  });

  await t.test("Deny has the focus, and Enter denies", async () => {
    await say(page, "copy denied");
    await dialog.waitFor();
    assert.equal(await focused(page), "Deny");
    await isAccessible(page, "tool call");
    const words = await dialog.textContent();
    assert.match(words, /safe\\u202etxt\.exe\\u200b/, "hidden characters are shown");
    const title = await dialog.getByRole("heading").textContent();
    assert.match(title, /^Guide.*gnihton wants to use copy_text$/);
    assert.doesNotMatch(words + title, /[\u200b\u202e]/, "and turn nothing");
    await page.keyboard.press("Enter");
    await dialog.waitFor({ state: "detached" });
    const { status, reason } = await outcome(outcomes, "denied");
    assert.deepEqual([status, reason], ["denied", "user_denied"]);
  });

  await t.test("Escape denies", async () => {
    await say(page, "where escaped");
    await dialog.getByText("To find\\u202e a train").waitFor();
    await page.keyboard.press("Escape");
    assert.equal((await outcome(outcomes, "escaped")).status, "denied");
    await dialog.waitFor({ state: "detached" });
  });

  await t.test("what is allowed runs once, and the next call asks again", async () => {
    for (const key of ["first", "second"]) {
      await say(page, `where ${key}`);
      await dialog.waitFor();
      await page.keyboard.press("Tab");
      assert.equal(await focused(page), "Allow once");
      await page.keyboard.press("Enter");
      const { status, result } = await outcome(outcomes, key);
      assert.equal(status, "executed");
      assert.deepEqual(result, { latitude: 52.52, longitude: 13.4, accuracy_metres: 30 });
      await dialog.waitFor({ state: "detached" });
    }
    await say(page, "copy copied");
    await dialog.getByRole("button", { name: "Allow once" }).click();
    assert.equal((await outcome(outcomes, "copied")).status, "executed");
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), CALLS.copy.arguments.text);
  });

  await t.test("a call that nobody answers goes away, as denied", async () => {
    await say(page, "where expired");
    await dialog.waitFor();
    assert.ok((await leftOfRing(page)) > 90, "the ring is full");
    await page.clock.fastForward(TOO_LONG_MS / 2);
    await until(page, () => {
      const share = parseInt(document.querySelector(".ring .left").getAttribute("stroke-dasharray"), 10);
      return share > 30 && share < 55;
    });
    await page.clock.fastForward(TOO_LONG_MS / 2);
    await dialog.waitFor({ state: "detached" });
    // The service has a clock of its own.
    const { status, reason } = await outcome(outcomes, "expired", 40);
    assert.deepEqual([status, reason], ["denied", "user_timeout"]);
  });

  await t.test("a permission is listed and taken back, and no call comes any more", async () => {
    await page.getByRole("navigation").getByRole("link", { name: "Settings" }).click();
    await page.getByRole("link", { name: "What agents may do" }).click();
    await page.locator("li", { hasText: "clipboard:write" }).getByText("without an end").waitFor();
    await isAccessible(page, "what agents may do");
    await page.setViewportSize({ width: 320, height: 640 });
    const wide = await page.evaluate(() =>
      [...document.querySelectorAll("html, main, .page, .page *")]
        .filter((element) => element.getBoundingClientRect().right > innerWidth + 1)
        .map((element) => element.outerHTML.slice(0, 80)),
    );
    assert.deepEqual(wide, [], "nothing is cut off on a page of 320 pixels");
    await page.setViewportSize({ width: 1280, height: 720 });
    await page.getByRole("button", { name: /^Take back: Guide/ }).click();
    await dialog.getByRole("button", { name: "Go on" }).click();
    await page.getByText("No agent has a permission.").waitFor();
    await openAgent(page, cluster, agentId);
    await say(page, "where revoked");
    const { status, reason } = await outcome(outcomes, "revoked");
    assert.deepEqual([status, reason], ["denied", "scope_not_granted"]);
    assert.equal(await dialog.count(), 0);
  });

  await page.unrouteAll({ behavior: "ignoreErrors" });
  assert.deepEqual(faults, []);
  await context.close();
});

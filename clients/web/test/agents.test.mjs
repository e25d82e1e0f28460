// A person's own agents: the token that is shown once, and the manifest.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { devCluster } from "@blindpipe/client/testing";
import { appOf, AXE, findBrowser, isAccessible, newPage, register, startBrowser } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";
const MANIFEST = {
  description: "Keeps\u202e the house",
  tools: [{ name: "copy_text", scope: "clipboard:write", description: "Hands over a text" }],
  permission_scopes: [{ scope: "clipboard:write", sensitivity: "medium", reason: "To hand over lists" }],
};

let cluster;
let browser;

before(async () => {
  if (!program) return;
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
});

after(() => browser?.close());

/** The elements that are cut off at the right. */
const wide = (page) =>
  page.evaluate(() =>
    [...document.querySelectorAll("html, main, .page, .page *:not(textarea)")]
      .filter((element) => element.getBoundingClientRect().right > innerWidth + 1)
      .map((element) => element.outerHTML.slice(0, 80)),
  );

test("a person makes an agent, and minds its manifest", { skip, timeout: 90_000 }, async (t) => {
  const { page, context, faults } = await newPage(browser, { serviceWorkers: "block" });
  page.setDefaultTimeout(10_000);
  await context.addInitScript(AXE);
  await register(page, cluster, `keeper-${Date.now()}@example.com`, "Olga");
  const manifest = page.getByLabel("Manifest, as JSON");
  const token = page.getByLabel("The agent's token");
  const save = page.getByRole("button", { name: "Save the manifest" });
  let secret;

  await t.test("the token is shown once", async () => {
    await page.goto(`${appOf(cluster)}#/agents`);
    await page.getByLabel("The agent's name").fill("House keeper");
    await page.getByRole("button", { name: "Make" }).click();
    const shown = page.getByRole("status").locator("pre");
    await shown.waitFor();
    secret = /BLINDPIPE_TOKEN=(hsk_\w{40})$/m.exec(await shown.textContent())[1];
    await isAccessible(page, "the token");
    await page.reload();
    await page.getByRole("link", { name: "House keeper" }).waitFor();
    assert.doesNotMatch(await page.content(), /hsk_/);
    assert.equal(await page.getByText("The token is shown once.").count(), 0);
  });

  await t.test("its page is reached and left by keyboard, and changes name and description", async () => {
    await page.getByRole("link", { name: "House keeper" }).focus();
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "House keeper", level: 1 }).waitFor();
    await page.getByText("This agent has no manifest yet.").waitFor();
    await page.getByLabel("The agent's name").fill("Caretaker");
    await page.keyboard.press("Tab");
    await page.keyboard.type("Looks after the house");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Caretaker", level: 1 }).waitFor();
    await page.reload();
    await page.getByLabel("Description", { exact: true }).waitFor();
    assert.equal(await page.getByLabel("Description", { exact: true }).inputValue(), "Looks after the house");
    await isAccessible(page, "an agent without a manifest");
  });

  await t.test("what is wrong is said, with its place", async () => {
    await manifest.fill("{ no JSON");
    await token.fill(secret);
    await save.click();
    await page.getByText("This is no JSON:").waitFor();
    await manifest.fill(JSON.stringify({ ...MANIFEST, permission_scopes: [{ scope: "location:read", sensitivity: "low" }] }));
    await save.click();
    await page.getByRole("alert").locator("code", { hasText: "manifest.permission_scopes" }).waitFor();
    await isAccessible(page, "a refused manifest");
    await manifest.fill(JSON.stringify(MANIFEST));
    await token.fill(`${secret.slice(0, -1)}${secret.endsWith("a") ? "b" : "a"}`);
    await save.click();
    await page.getByText("This is not the token of this agent.").waitFor();
    // The person is still signed in.
    await page.getByText("This agent has no manifest yet.").waitFor();
  });

  await t.test("the agent's token changes the manifest, and is not kept", async () => {
    await token.fill(secret);
    const sent = page.waitForRequest((request) => request.method() === "PATCH");
    await page.keyboard.press("Enter");
    assert.equal((await (await sent).allHeaders()).authorization, `Bearer ${secret}`);
    await page.getByText("Saved.").waitFor();
    await page.locator("li", { hasText: "clipboard:write" }).getByText("To hand over lists").waitFor();
    await page.locator("li", { hasText: "copy_text" }).getByText("Hands over a text").waitFor();
    await page.getByText("Keeps\\u202e the house").waitFor();
    assert.equal(await token.inputValue(), "");
    await isAccessible(page, "a manifest");
    const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]));
    assert.ok(!kept.includes("hsk_"));
    await page.reload();
    await manifest.waitFor();
    assert.deepEqual(JSON.parse(await manifest.inputValue()), MANIFEST);
  });

  await t.test("in English and German, on a page of 320 pixels, nothing is cut off", async () => {
    await page.setViewportSize({ width: 320, height: 640 });
    assert.deepEqual(await wide(page), []);
    const session = await context.newCDPSession(page);
    const userAgent = await page.evaluate(() => navigator.userAgent);
    await session.send("Emulation.setUserAgentOverride", { userAgent, acceptLanguage: "de-DE,de" });
    await page.reload();
    await page.getByRole("button", { name: "Manifest speichern" }).waitFor();
    assert.deepEqual(await wide(page), []);
    await isAccessible(page, "a manifest, in German");
  });

  assert.deepEqual(faults, []);
  await context.close();
});

// The account and the agent that the demo of `make run` prints, as a new user meets them.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { devCluster } from "@blindpipe/client/testing";
import { appOf, findBrowser, newPage, say, startBrowser } from "./support.mjs";

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

test("the demo's agent streams, asks, and calls a tool", { skip, timeout: 90_000 }, async () => {
  const { DEMO_EMAIL, DEMO_PASSWORD } = process.env;
  const { page, context, faults } = await newPage(browser, { serviceWorkers: "block" });
  page.setDefaultTimeout(15_000);
  const { origin } = new URL(appOf(cluster));
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin });
  await page.goto(appOf(cluster));
  await page.getByLabel("E-mail").fill(DEMO_EMAIL);
  await page.getByLabel("Password").fill(DEMO_PASSWORD);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByLabel("I have written it down").check();
  await page.getByRole("button", { name: "Go on" }).click();
  const navigation = page.getByRole("navigation");
  await navigation.getByRole("link", { name: "Agents" }).click();
  await page.getByText("Chat", { exact: true }).click();
  await say(page, "hello");
  const conversation = page.url();
  await page.locator("article.live", { hasText: "word by word" }).waitFor();
  await page.locator("article.message:not(.own)", { hasText: "if you let me." }).waitFor();

  const approve = async () => {
    await navigation.getByRole("link", { name: /Approvals/ }).locator(".count").waitFor();
    await navigation.getByRole("link", { name: /Approvals/ }).click();
    await page.getByRole("button", { name: "Approve" }).click();
    await page.getByText("Nothing waits for you.").waitFor();
    await page.goto(conversation);
  };
  await say(page, "ask me");
  await approve();
  await page.getByText("Release 1.4.2: approved.").first().waitFor();

  await say(page, "use a tool");
  await page.getByText("Allow me the clipboard").first().waitFor();
  await approve();
  await say(page, "the tool again");
  await page.getByRole("dialog").getByRole("button", { name: "Allow once" }).click();
  await page.getByText("Your clipboard has a greeting now.").first().waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "Greetings from the Guide");
  assert.deepEqual(faults, []);
  await context.close();
});

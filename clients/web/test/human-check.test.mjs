// The human check: in a frame of its own origin, whose proof goes to the app and to nobody else.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { devCluster } from "@blindpipe/client/testing";
import { appOf, AXE, CHECK_ORIGIN, findBrowser, isAccessible, newPage, PASSWORD, register, startBrowser } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";
/** What stands for Turnstile's script: it asks for a press, and hands out what the cluster takes. */
const SCRIPT = `globalThis.turnstile = {
  render(where, { sitekey, language, callback }) {
    const button = document.createElement("button");
    button.textContent = sitekey + " " + language;
    button.onclick = () => callback("dev-pass");
    document.querySelector(where).append(button);
  },
};`;

let cluster;
let browser;

before(async () => {
  if (!program) return;
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
});

after(() => browser?.close());

async function signIn(page, email) {
  await page.goto(appOf(cluster));
  await page.getByLabel("E-mail").fill(email);
  await page.getByLabel("Password").fill(PASSWORD);
  await page.getByRole("button", { name: "Sign in" }).click();
}

test("the check runs in a frame of its own origin", { skip, timeout: 60_000 }, async (t) => {
  const { page, context, faults } = await newPage(browser);
  page.setDefaultTimeout(20_000);
  await context.addInitScript(AXE);
  const email = `human-${Date.now()}@example.com`;
  await register(page, cluster, email, "Ada");
  await context.clearCookies();
  await page.reload();
  // The settings of a service with a key of Turnstile's.
  const settings = { site_key: "0x4KEY", stand_in: false, app_origins: [new URL(appOf(cluster)).origin] };
  await context.route(`${CHECK_ORIGIN}/app/check.json`, (route) => route.fulfill({ json: settings }));
  await context.route("https://challenges.cloudflare.com/**", (route) =>
    route.fulfill({ contentType: "text/javascript", body: SCRIPT }),
  );

  await t.test("a person leaves it, and is told", async () => {
    await signIn(page, email);
    await page.getByRole("dialog", { name: "Are you a person?" }).waitFor();
    await page.frameLocator("iframe.human-check").getByRole("button", { name: "0x4KEY en" }).waitFor();
    await isAccessible(page, "the human check");
    await page.keyboard.press("Escape");
    await page.getByText("The human check did not end.").waitFor();
  });

  await t.test("its proof signs in", async () => {
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.frameLocator("iframe.human-check").getByRole("button", { name: "0x4KEY en" }).click();
    await page.getByRole("heading", { name: "Conversations" }).waitFor();
    assert.deepEqual(faults, []);
  });

  await t.test("another page gets no proof, and not even the frame", async () => {
    const strange = await context.newPage();
    const said = [];
    strange.on("console", (message) => said.push(message.text()));
    await context.route("https://strange.example/", (route) =>
      route.fulfill({ contentType: "text/html", body: `<iframe src="${CHECK_ORIGIN}/app/check"></iframe>` }),
    );
    await strange.goto("https://strange.example/");
    await waitUntil(() => said.some((text) => /frame-ancestors/.test(text)));
    await strange.close();
  });

  await t.test("the app's own address has no such page", async () => {
    const answer = await page.evaluate(() => fetch("/app/check").then(({ status }) => status));
    assert.equal(answer, 404);
  });

  await context.close();
});

async function waitUntil(isTrue) {
  for (const end = Date.now() + 10_000; !isTrue(); ) {
    if (Date.now() > end) throw new Error(`never true: ${isTrue}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

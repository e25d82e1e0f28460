// The widget: a conversation with one agent, on a page of another site.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import { devCluster } from "@blindpipe/client/testing";
import { appOf, AXE, findBrowser, newPage, PASSWORD, register, startBrowser } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";
/** The cluster's list has this origin. */
const SHOP = "https://shop.example/";
const STRANGE = "https://strange.example/";

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

async function startAgent() {
  const options = await cluster.agent("Shop assistant", (await cluster.user("shop")).client);
  const agent = new Agent(options);
  agent.on("message", async (ctx) => {
    if (ctx.text === "order") await ctx.approve("order", { items: 2 }, { text: "Order two of them?" });
    else await ctx.reply(`You said: ${ctx.text}`);
  });
  const stopping = new AbortController();
  const running = agent.run({ signal: stopping.signal });
  stopAgent = async () => {
    stopping.abort();
    await running;
  };
  return options.agentId;
}

/** A page of another site, with what it says to developers. */
async function foreignPage(context, url, body) {
  await context.route(url, (route) =>
    route.fulfill({ contentType: "text/html", body: `<!doctype html><html lang="en"><title>Shop</title>${body}</html>` }),
  );
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  const said = [];
  page.on("console", (message) => said.push(message.text()));
  await page.goto(url);
  return { page, said };
}

async function hasSaid(said, words) {
  for (const end = Date.now() + 10_000; !said.some((text) => words.test(text)); ) {
    if (Date.now() > end) throw new Error(`not said: ${words} in ${said.join("\n")}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

test("a page of another site shows a conversation with one agent", { skip, timeout: 120_000 }, async (t) => {
  const agentId = await startAgent();
  const app = appOf(cluster);
  const scriptOf = (agent) => `<script src="${app}/widget.js" data-agent="${agent}"></script>`;
  const { page: own, context, faults } = await newPage(browser);
  own.setDefaultTimeout(20_000);
  const email = `shop-${Date.now()}@example.com`;
  const { protectionPassword } = await register(own, cluster, email, "Ada");
  await context.addInitScript(AXE);
  // The cluster is on this machine, which pages of the network reach only if a person agrees.
  await context.grantPermissions(["local-network-access"]);

  const shop = await foreignPage(context, SHOP, `<h1>Shop</h1>${scriptOf(`${app}#/a/${agentId}`)}`);
  const frame = shop.page.frameLocator("iframe");

  await t.test("nothing is loaded before a press", async () => {
    await shop.page.getByRole("button", { name: "Chat" }).waitFor();
    assert.equal(shop.page.frames().length, 1);
    await shop.page.getByRole("button", { name: "Chat" }).click();
    await frame.getByRole("heading", { name: "Sign in" }).waitFor();
    await frame.getByText("a sign-in here ends after a few minutes").waitFor();
    const results = await shop.page.evaluate(() => globalThis.axe.run());
    const serious = results.violations.filter(({ impact }) => impact === "serious" || impact === "critical");
    assert.deepEqual(serious.map(({ id }) => id), []);
  });

  await t.test("a person signs in, restores the keys, and writes with the agent", async () => {
    await frame.getByLabel("E-mail").fill(email);
    await frame.getByLabel("Password").fill(PASSWORD);
    await frame.getByRole("button", { name: "Sign in" }).click();
    await frame.getByLabel("Protection password").fill(protectionPassword);
    await frame.getByRole("button", { name: "Go on" }).click();
    await frame.getByText(agentId).waitFor();
    await frame.getByRole("button", { name: "Go on" }).click();
    await frame.getByLabel("Write a message").fill("hello");
    await frame.getByLabel("Write a message").press("Enter");
    await frame.locator(".feed").getByText("You said: hello").waitFor();
  });

  await t.test("it has nothing but the conversation, and decides nothing", async () => {
    assert.equal(await frame.getByRole("navigation").count(), 0);
    await frame.getByLabel("Write a message").fill("order");
    await frame.getByLabel("Write a message").press("Enter");
    const decide = frame.getByRole("link", { name: "Decide in the app" });
    await decide.waitFor();
    assert.equal(await decide.getAttribute("target"), "_blank");
    assert.equal(await frame.getByRole("button", { name: "Approve" }).count(), 0);
    // The page around it cannot lead it elsewhere.
    await shop.page.locator("iframe").evaluate((element) => (element.src = element.src.replace(/#.*/, "#/settings")));
    await frame.getByLabel("Write a message").waitFor();
    assert.equal(await frame.getByRole("heading", { name: "Settings" }).count(), 0);
  });

  await t.test("it closes and opens again, with what was written", async () => {
    await shop.page.getByRole("button", { name: "Close" }).click();
    await frame.locator(".conversation").waitFor({ state: "hidden" });
    await shop.page.getByRole("button", { name: "Chat" }).click();
    await frame.locator(".feed").getByText("You said: hello").waitFor();
  });

  await t.test("the app names the device by the page around it", async () => {
    await own.goto(`${app}#/settings/devices`);
    await own.getByText("(shop.example)").first().waitFor();
  });

  await t.test("a site that is not in the list is refused", async () => {
    const strange = await foreignPage(context, STRANGE, scriptOf(agentId));
    await strange.page.getByRole("button", { name: "Chat" }).click();
    await hasSaid(strange.said, /frame-ancestors/);
    assert.equal(await strange.page.frameLocator("iframe").getByRole("heading", { name: "Sign in" }).count(), 0);
    await strange.page.close();
  });

  await t.test("the app is framed by nobody", async () => {
    for (const url of [SHOP, STRANGE]) {
      const page = await foreignPage(context, `${url}frame`, `<iframe src="${app}"></iframe>`);
      await hasSaid(page.said, /frame-ancestors/);
      await page.page.close();
    }
  });

  await t.test("a script that names no agent of this service shows nothing", async () => {
    for (const agent of ["", "no agent", `https://other.example/app#/a/${agentId}`, "javascript:alert(1)"]) {
      const page = await foreignPage(context, `${SHOP}wrong`, scriptOf(agent));
      await hasSaid(page.said, /data-agent is neither/);
      assert.equal(await page.page.getByRole("button").count(), 0);
      await page.page.close();
      await context.unroute(`${SHOP}wrong`);
    }
  });

  await t.test("no page of the app has broken its policy", () => {
    assert.deepEqual(faults, []);
    assert.deepEqual(shop.said.filter((text) => /Content.Security|Trusted/i.test(text)), []);
  });

  await context.close();
});

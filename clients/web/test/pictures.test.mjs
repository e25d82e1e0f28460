// Pictures of all screens, in both widths and themes, for docs/app. They are made on request.
import { mkdirSync } from "node:fs";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Client } from "@blindpipe/client";
import { Agent } from "@blindpipe/client/agent";
import { devCluster } from "@blindpipe/client/testing";
import {
  addAuthenticator, appOf, deviceKeys, findBrowser, newPage, openAgent, PASSWORD, pushStandIn, register, say, startBrowser,
} from "./support.mjs";

const program = process.env.UPDATE_PICTURES ? findBrowser() : null;
const skip = program ? false : "UPDATE_PICTURES=1 makes them";
const PICTURES = fileURLToPath(new URL("../../../docs/app/", import.meta.url));
/** `1` makes all pictures; else the names of those that are wanted, with commas. */
const WANTED = process.env.UPDATE_PICTURES?.split(",") ?? [];
const WIDTHS = [[1200, 760], [390, 760]];
const MANIFEST = {
  tools: [{ name: "copy_text", scope: "clipboard:write" }],
  permission_scopes: [{ scope: "clipboard:write", sensitivity: "medium" }],
};
const HOUSE_MANIFEST = {
  description: "Looks after the house.",
  tools: [{ name: "copy_text", scope: "clipboard:write", description: "Hands over a list" }],
  permission_scopes: [{ scope: "clipboard:write", sensitivity: "medium", reason: "To hand over shopping lists" }],
};
/** A page of another site with the widget. */
const SHOP = "https://shop.example/";
const SHOP_STYLE = `body { font: 1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem 2rem; color-scheme: light dark; }`;
const ANSWER = `The release is **ready**:

1. All 412 tests pass.
2. The migration adds two columns, and takes no lock.

\`\`\`sh
blindpipe migrate --plan
\`\`\`

The notes are [here](https://docs.example.org/notes).`;

let cluster;
let browser;
let stopAgent = async () => {};

before(async () => {
  if (!program) return;
  mkdirSync(PICTURES, { recursive: true });
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
});

after(async () => {
  await stopAgent();
  await browser?.close();
});

/** An agent that answers, and asks for an approval. */
async function startAgent(owner) {
  const options = await cluster.agent("Release assistant", owner, MANIFEST);
  const agent = new Agent(options);
  agent.on("message", async (ctx) => {
    if (ctx.text.startsWith("Deploy")) {
      await ctx.approve("deploy", { version: "1.4.2", cluster: "production" }, { text: "Deploy 1.4.2 to production?" });
    } else if (ctx.text.startsWith("May")) {
      await ctx.requestGrant(["clipboard:write"], { reason: "To hand you the commands of a release." });
    } else if (ctx.text.startsWith("Copy")) {
      const args = { text: "blindpipe migrate --plan" };
      await ctx.call({ tool: "copy_text", scope: "clipboard:write", arguments: args, prompt: "The first command" });
    } else {
      await ctx.reply({ type: "text", format: "markdown", text: ANSWER });
    }
  });
  const stopping = new AbortController();
  const running = agent.run({ signal: stopping.signal });
  stopAgent = async () => {
    stopping.abort();
    await running;
  };
  return options.agentId;
}

async function shootWidget(context, app, agentId, { email, protectionPassword }) {
  const script = `<script src="${app}/widget.js" data-agent="${agentId}" data-label="Ask the assistant"></script>`;
  const text = "<h1>Releases</h1><p>Version 1.4.2 is out. It has two new columns, and takes no lock.</p>";
  const body = `<!doctype html><html lang="en"><title>Releases</title><style>${SHOP_STYLE}</style>${text}${script}</html>`;
  await context.route(SHOP, (route) => route.fulfill({ contentType: "text/html", body }));
  await context.grantPermissions(["local-network-access"]);
  const page = await context.newPage();
  await page.goto(SHOP);
  await page.getByRole("button", { name: "Ask the assistant" }).click();
  const frame = page.frameLocator("iframe");
  await frame.getByLabel("E-mail").fill(email);
  await frame.getByLabel("Password").fill(PASSWORD);
  await shoot(page, "widget-sign-in");
  await frame.getByRole("button", { name: "Sign in" }).click();
  await frame.getByLabel("Protection password").fill(protectionPassword);
  await frame.getByRole("button", { name: "Go on" }).click();
  await frame.locator(".feed article", { hasText: "All 412 tests pass" }).first().waitFor();
  await shoot(page, "widget");
  await page.close();
}

async function shoot(page, name) {
  if (!WANTED.includes("1") && !WANTED.includes(name)) return;
  await page.mouse.move(0, 0);
  for (const [width, height] of WIDTHS) {
    await page.setViewportSize({ width, height });
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await page.waitForTimeout(150);
      await page.screenshot({ path: `${PICTURES}${name}-${width < 500 ? "phone" : "desktop"}-${colorScheme}.png` });
    }
  }
  await page.setViewportSize({ width: WIDTHS[0][0], height: WIDTHS[0][1] });
}

test("pictures of all screens", { skip, timeout: 170_000 }, async () => {
  const owner = await cluster.user("owner");
  const agentId = await startAgent(owner.client);
  const ben = await cluster.user("ben");
  await ben.client.updateProfile({ display_name: "Ben" });
  const { page, context } = await newPage(browser);
  page.setDefaultTimeout(10_000);
  const url = appOf(cluster);
  const email = `ada-${Date.now()}@example.com`;
  await page.goto(url);
  await page.getByLabel("E-mail").waitFor();
  await shoot(page, "sign-in");
  await addAuthenticator(context, page);
  const { userId, protectionPassword } = await register(page, cluster, email, "Ada", () => shoot(page, "protect"));
  await openAgent(page, cluster, agentId);
  await say(page, "How is release 1.4.2?");
  await page.locator(".feed article", { hasText: "All 412 tests pass" }).waitFor();
  const talk = await ben.client.openDirect(userId);
  await talk.send("Shall we ship it today?");
  await say(page, "Deploy it, please.");
  await page.getByRole("link", { name: /Approvals/ }).locator(".count").waitFor();
  await page.locator(".list a", { hasText: "Ben" }).waitFor();
  await shoot(page, "conversation");
  await page.goto(`${url}#/`);
  await page.getByRole("heading", { name: "Conversations" }).waitFor();
  await shoot(page, "conversations");
  await page.goto(`${url}#/approvals`);
  await page.getByText("Deploy 1.4.2 to production?").waitFor();
  await shoot(page, "approvals");

  await openAgent(page, cluster, agentId);
  await say(page, "May you copy the commands for me?");
  await page.goto(`${url}#/settings/grants`);
  await page.getByText("asks for a permission").waitFor();
  await shoot(page, "a-permission-asked-for");
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByText("without an end").waitFor();
  await shoot(page, "what-agents-may-do");
  await openAgent(page, cluster, agentId);
  await say(page, "Copy it, please.");
  await page.getByRole("dialog").getByRole("button", { name: "Deny" }).waitFor();
  await shoot(page, "tool-call");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor({ state: "detached" });

  await page.goto(`${url}#/`);
  await page.locator(".list a", { hasText: "Ben" }).click();
  await page.getByText("More", { exact: true }).click();
  await page.getByRole("button", { name: "Compare keys" }).click();
  await page.locator("output.digits").waitFor();
  await shoot(page, "compare-keys");
  await page.getByRole("button", { name: "They are equal" }).click();
  await page.getByText("keys compared").waitFor();
  await page.getByText("More", { exact: true }).click();
  const { email: address, password } = ben;
  const anew = await Client.login({ url: cluster.nodes[0], email: address, password, turnstileToken: "dev-pass", deviceId: "anew" });
  await anew.devices.create("another password than before", { accountPassword: password });
  await (await anew.openDirect(userId)).send("I have a new phone.");
  await page.getByRole("button", { name: "Confirm: Ben" }).waitFor();
  await shoot(page, "a-new-key");

  await page.goto(`${url}#/agents`);
  await page.getByLabel("The agent's name").fill("House keeper");
  await page.getByRole("button", { name: "Make" }).click();
  await page.getByText("BLINDPIPE_TOKEN").waitFor();
  await shoot(page, "agents");
  const [, token] = /BLINDPIPE_TOKEN=(\S+)/.exec(await page.getByRole("status").locator("pre").textContent());
  await page.getByRole("link", { name: "House keeper" }).click();
  await page.getByLabel("Manifest, as JSON").fill(JSON.stringify(HOUSE_MANIFEST, null, 2));
  await page.getByLabel("The agent's token").fill(token);
  await page.getByRole("button", { name: "Save the manifest" }).click();
  await page.getByText("Saved.").waitFor();
  await page.evaluate(() => document.querySelector(".page").scrollTo(0, 0));
  await shoot(page, "manifest");
  await page.goto(`${url}#/settings`);
  await page.getByRole("button", { name: "Sign out" }).waitFor();
  await shoot(page, "settings");
  await page.goto(`${url}#/settings/profile`);
  await page.getByText(email).waitFor();
  await shoot(page, "profile");
  await page.goto(`${url}#/settings/sign-in`);
  await page.getByLabel("Name of the new passkey").fill("Laptop");
  await page.getByRole("button", { name: "Add a passkey" }).click();
  await page.getByText("never used").waitFor();
  await shoot(page, "passkeys-and-password");
  await page.goto(`${url}#/settings/devices`);
  await page.getByRole("button", { name: /What it added/ }).click();
  await page.getByText("Passkey: Laptop").waitFor();
  await shoot(page, "devices-and-sign-ins");
  // A browser without a window forbids them to every page.
  await page.evaluate(pushStandIn, deviceKeys());
  await page.goto(`${url}#/settings/notifications`);
  await page.getByRole("button", { name: "Turn on" }).click();
  await page.getByRole("group", { name: "What a notification shows" }).waitFor();
  await shoot(page, "notifications");
  await page.goto(`${url}#/settings/offline`);
  await page.getByRole("button", { name: "Keep an encrypted copy" }).waitFor();
  await shoot(page, "reading-without-a-connection");
  await page.goto(`${url}#/settings/reads`);
  await page.locator(".page li").first().waitFor();
  await shoot(page, "what-agents-have-read");

  const other = await newPage(browser);
  await addAuthenticator(other.context, other.page);
  await other.page.goto(url);
  await other.page.getByLabel("E-mail").fill(email);
  await other.page.getByLabel("Password").fill(PASSWORD);
  await other.page.getByRole("button", { name: "Sign in" }).click();
  await other.page.getByLabel("Protection password").waitFor();
  await shoot(other.page, "restore");
  await other.context.close();

  await shootWidget(context, url, agentId, { email, protectionPassword });

  await page.goto(`${url}#/`);
  await page.locator(".list a", { hasText: "Release assistant" }).click();
  await context.setOffline(true);
  await say(page, "I am in a tunnel.");
  await page.getByText("waits for the connection").waitFor();
  await shoot(page, "without-a-connection");
  await context.setOffline(false);
  await page.locator(".feed article.own", { hasText: "I am in a tunnel." }).waitFor();
  await page.getByText("More", { exact: true }).click();
  await page.getByRole("button", { name: "Block Release assistant" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Go on" }).click();
  await page.getByRole("button", { name: "Unblock: Release assistant" }).waitFor();
  await shoot(page, "blocked");
  await context.close();
});

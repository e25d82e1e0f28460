// The account of a person: passkeys, sign-ins and what they added, password, blocks.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { devCluster } from "@blindpipe/client/testing";
import { addAuthenticator, AXE, findBrowser, isAccessible, newPage, openAgent, PASSWORD, register, startBrowser } from "./support.mjs";

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

async function settings(page, name) {
  await page.getByRole("navigation").getByRole("link", { name: "Settings" }).click();
  await page.locator(".links").getByRole("link", { name }).click();
  await page.getByRole("heading", { name, level: 1 }).waitFor();
}

async function agree(page) {
  await page.getByRole("dialog").getByRole("button", { name: "Go on" }).click();
}

test("a person minds the account", { skip, timeout: 120_000 }, async (t) => {
  const { page, context, faults } = await newPage(browser, { serviceWorkers: "block" });
  page.setDefaultTimeout(10_000);
  await context.addInitScript(AXE);
  const forgetPasskeys = await addAuthenticator(context, page);
  const email = `grace-${Date.now()}@example.com`;
  const { protectionPassword } = await register(page, cluster, email, "Grace");

  /** The service wants a proof before the next call. */
  const refuseOnce = (url) => {
    const json = { error: { code: "REAUTH_REQUIRED", message: "log in again", params: {} }, request_id: "r" };
    return page.route(url, (route) => route.fulfill({ status: 403, json }), { times: 1 });
  };

  await t.test("a passkey is made, after a proof where the service wants one", async () => {
    await settings(page, "Passkeys and password");
    await page.getByText("You have no passkeys yet.").waitFor();
    await refuseOnce("**/users/me/passkeys/begin");
    await page.getByLabel("Name of the new passkey").fill("Laptop");
    await page.getByRole("button", { name: "Add a passkey" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Password").fill("not the password");
    await dialog.getByRole("button", { name: "Go on" }).click();
    await dialog.getByText("The e-mail or the password is wrong.").waitFor();
    await isAccessible(page, "proof");
    await dialog.getByLabel("Password").fill(PASSWORD);
    await dialog.getByRole("button", { name: "Go on" }).click();
    await page.getByRole("listitem").filter({ hasText: "Laptop" }).getByText("never used").waitFor();
    await isAccessible(page, "passkeys and password");
  });

  await t.test("the browser offers the passkey at the next sign-in, without a button", async () => {
    await page.getByRole("link", { name: "Settings" }).first().click();
    await page.getByRole("button", { name: "Sign out" }).click();
    await agree(page);
    await page.getByLabel("Protection password").fill(protectionPassword);
    await page.getByRole("button", { name: "Go on" }).click();
    await settings(page, "Passkeys and password");
    await page.getByRole("listitem").filter({ hasText: "Laptop" }).getByText("last used").waitFor();
  });

  await t.test("a sign-in shows what it added, and that is undone", async () => {
    await settings(page, "Devices and sign-ins");
    await page.getByRole("button", { name: "What it added (1)" }).click();
    await page.getByText("Passkey: Laptop").waitFor();
    await isAccessible(page, "devices and sign-ins");
    await page.getByRole("button", { name: "Undo: Laptop" }).click();
    await agree(page);
    await page.getByText("Passkey: Laptop").waitFor({ state: "detached" });
    await settings(page, "Passkeys and password");
    await page.getByText("You have no passkeys yet.").waitFor();
  });

  await t.test("a passkey is removed, after it has proven who asks", async () => {
    await forgetPasskeys();
    await page.getByLabel("Name of the new passkey").fill("Key ring");
    await page.getByRole("button", { name: "Add a passkey" }).click();
    await page.getByRole("button", { name: "Remove: Key ring" }).waitFor();
    await refuseOnce("**/users/me/passkeys/*");
    const isProven = page.waitForResponse((response) => response.url().endsWith("/auth/reauth"));
    await page.getByRole("button", { name: "Remove: Key ring" }).click();
    await agree(page);
    await page.getByRole("dialog").getByRole("button", { name: "Use a passkey" }).click();
    assert.equal((await isProven).status(), 200);
    await page.getByText("You have no passkeys yet.").waitFor();
  });

  await t.test("the password changes, and the name", async () => {
    await page.getByLabel("Present password").fill("not the password");
    await page.getByLabel("New password").fill(`${PASSWORD} new`);
    await page.getByRole("button", { name: "Change the password" }).click();
    await page.getByText("The e-mail or the password is wrong.").waitFor();
    await page.getByLabel("Present password").fill(PASSWORD);
    await page.getByRole("button", { name: "Change the password" }).click();
    await page.getByText("All other sign-ins have ended.").waitFor();
    await settings(page, "Profile");
    await page.getByText(email).waitFor();
    await page.getByLabel("Your name").fill("Grace Hopper");
    await page.getByRole("button", { name: "Save" }).click();
    await page.getByText("Saved.").waitFor();
    await isAccessible(page, "profile");
  });

  await t.test("an agent is blocked and unblocked", async () => {
    const owner = await cluster.user("owner");
    const { agentId } = await cluster.agent("Spammer", owner.client);
    await openAgent(page, cluster, agentId);
    await page.getByText("More", { exact: true }).click();
    await page.getByRole("button", { name: "Block Spammer" }).click();
    await agree(page);
    await page.getByRole("heading", { name: "Blocked" }).waitFor();
    await isAccessible(page, "blocks");
    await page.getByRole("button", { name: "Unblock: Spammer" }).click();
    await page.getByText("You have blocked nobody.").waitFor();
  });
  assert.deepEqual(faults, []);
  await context.close();
});

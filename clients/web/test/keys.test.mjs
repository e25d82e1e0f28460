// The keys of others: digits that two people compare, by eye and by camera, and what is said of a new key.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Client } from "@blindpipe/client";
import { devCluster } from "@blindpipe/client/testing";
import { appOf, AXE, findBrowser, isAccessible, newPage, register, restore, startBrowser } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";
const JSQR = readFileSync(fileURLToPath(new URL("../node_modules/jsqr/dist/jsQR.js", import.meta.url)), "utf8");
/** The least that the scheme allows. */
const CHEAP_COSTS = { m: 19_456, t: 2, p: 1 };

let cluster;
let browser;

before(async () => {
  if (!program) return;
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
});

after(() => browser?.close());

/** Opens the dialog, and gives the digits without spaces. */
async function compare(page) {
  await page.getByText("More", { exact: true }).click();
  await page.getByRole("button", { name: "Compare keys" }).click();
  const digits = page.locator("output.digits");
  await digits.waitFor();
  return (await digits.textContent()).replaceAll(" ", "");
}

/** Reads the picture as another device's camera does: from what is on the screen. */
async function scanned(context, page) {
  const picture = await page.getByRole("img", { name: /^The same 60 digits as a QR code/ }).screenshot();
  const reader = await context.newPage();
  try {
    await reader.addScriptTag({ content: JSQR });
    return await reader.evaluate(async (base64) => {
      const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
      const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
      canvas.drawImage(image, 0, 0);
      const { data, width, height } = canvas.getImageData(0, 0, image.width, image.height);
      return globalThis.jsQR(data, width, height)?.data ?? null;
    }, picture.toString("base64"));
  } finally {
    await reader.close();
  }
}

test("two people compare their keys", { skip, timeout: 90_000 }, async (t) => {
  const { page, context, faults } = await newPage(browser);
  page.setDefaultTimeout(10_000);
  await context.addInitScript(AXE);
  const { userId } = await register(page, cluster, `ada-${Date.now()}@example.com`, "Ada");
  const ben = await cluster.user("ben");
  await ben.client.updateProfile({ display_name: "Ben" });
  await (await ben.client.openDirect(userId)).send("Good morning");
  await page.locator(".list a", { hasText: "Ben" }).click();
  await page.locator(".feed").getByText("Good morning").waitFor();
  const mark = page.locator("header").getByText("keys compared");

  await t.test("both see equal digits, and the picture has them", async () => {
    const other = await newPage(browser, { colorScheme: "dark" });
    await restore(other.page, cluster, ben);
    await other.page.locator(".list a").first().click();
    await other.page.locator(".feed").getByText("Good morning").waitFor();
    const digits = await compare(page);
    assert.match(digits, /^\d{60}$/);
    assert.equal(await compare(other.page), digits);
    assert.equal(await scanned(context, page), digits);
    assert.equal(await scanned(other.context, other.page), digits, "also on a dark page");
    await isAccessible(page, "compare keys");
    assert.deepEqual(other.faults, []);
    await other.context.close();
  });

  await t.test("they are marked when they are equal, and stay so", async () => {
    assert.equal(await mark.count(), 0);
    await page.getByRole("button", { name: "They are equal" }).click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await mark.waitFor();
    // The standing of a key is written within a fifth of a second.
    await page.waitForTimeout(500);
    await page.reload();
    await mark.waitFor();
  });

  await t.test("a new key has a notice, until it is confirmed", async () => {
    // On a new device, Ben starts anew: nothing of his says that it is he.
    const { email, password } = ben;
    const url = cluster.nodes[0];
    const anew = await Client.login({ url, email, password, turnstileToken: "dev-pass", deviceId: "anew" });
    await anew.devices.create("another password than before", { accountPassword: password, costs: CHEAP_COSTS });
    await (await anew.openDirect(userId)).send("I have a new phone");
    const notice = page.locator(".notices");
    await notice.getByText("Ben has a new key. Messages are not encrypted for it until you confirm it.").waitFor();
    assert.equal(await mark.count(), 0);
    await isAccessible(page, "a new key");
    await page.reload();
    await notice.getByRole("button", { name: "Confirm: Ben" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Go on" }).click();
    await notice.waitFor({ state: "detached" });
    await page.locator(".feed").getByText("I have a new phone").waitFor();
    assert.equal(await mark.count(), 0, "it is confirmed, not compared");
  });

  assert.deepEqual(faults, []);
  await context.close();
});

// Browsers that look at the app, and what a person does there.
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { createECDH, createHash, randomBytes, X509Certificate } from "node:crypto";
import https from "node:https";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import tls from "node:tls";
import { fileURLToPath } from "node:url";
import { devCluster } from "@blindpipe/client/testing";
import { chromium } from "playwright-core";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));
const PACKAGES = process.env.BLINDPIPE_PACKAGES ?? join(ROOT, ".dev/packages");

export function findBrowser() {
  const folders = [join(PACKAGES, "browser/usr/lib/chromium"), "/usr/lib/chromium", ...process.env.PATH.split(delimiter)];
  const names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
  return folders.flatMap((folder) => names.map((name) => join(folder, name))).find(existsSync) ?? null;
}

/** The certificate of a node, for a browser to take this key and no other. */
function keyHash(url) {
  const { hostname, port } = new URL(url);
  return new Promise((resolve, reject) => {
    const socket = tls.connect({ host: hostname, port: Number(port), rejectUnauthorized: false }, () => {
      const { publicKey } = new X509Certificate(socket.getPeerCertificate(true).raw);
      socket.end();
      resolve(createHash("sha256").update(publicKey.export({ type: "spki", format: "der" })).digest("base64"));
    });
    socket.on("error", reject);
  });
}

/** A browser that was fetched brings its libraries and fonts along. */
function environment(program) {
  const fetched = join(PACKAGES, "browser");
  if (!program.startsWith(fetched)) return process.env;
  const folders = readdirSync(join(fetched, "usr/lib"), { recursive: true, withFileTypes: true });
  const libraries = folders.filter((entry) => entry.isDirectory()).map((entry) => join(entry.parentPath, entry.name));
  const folder = mkdtempSync(join(tmpdir(), "fonts-"));
  const fonts = join(folder, "fonts.conf");
  const own = `<dir>${join(fetched, "usr/share/fonts")}</dir>`;
  writeFileSync(fonts, `<fontconfig>${own}<dir>/usr/share/fonts</dir><cachedir>${folder}</cachedir></fontconfig>`);
  return { ...process.env, LD_LIBRARY_PATH: libraries.join(delimiter), FONTCONFIG_FILE: fonts };
}

export async function startBrowser(program, url) {
  return chromium.launch({
    executablePath: program,
    env: environment(program),
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
      // In place of Playwright's own list, which ends the storage of its own that a frame has on each site.
      "--disable-features=HttpsUpgrades,Translate",
      `--ignore-certificate-errors-spki-list=${await keyHash(url)}`,
    ],
  });
}

/** Where the cluster of the tests has the human check. */
export const CHECK_ORIGIN = "https://check.example";

/** Gives a browser what a node answers under the name of another host. */
async function ofNode(route) {
  const { nodes } = await devCluster();
  const { host, pathname } = new URL(route.request().url());
  const { hostname, port } = new URL(nodes[0]);
  const answer = await new Promise((resolve, reject) => {
    // The certificate has the node's own name.
    const options = { hostname, port, path: pathname, servername: "localhost", headers: { host } };
    https.get(options, resolve).on("error", reject);
  });
  const body = Buffer.concat(await answer.toArray());
  await route.fulfill({ status: answer.statusCode, headers: answer.headers, body });
}

/** A browser of its own, whose every violation of the policy and every error of a script is kept. */
export async function newPage(browser, options = {}) {
  const context = await browser.newContext({ locale: "en-GB", ...options });
  await context.route(`${CHECK_ORIGIN}/**`, ofNode);
  const page = await context.newPage();
  const faults = [];
  page.on("console", (message) => {
    if (message.type() === "error" && !/Failed to load resource/.test(message.text())) faults.push(message.text());
  });
  page.on("pageerror", (error) => faults.push(String(error)));
  return { page, context, faults };
}

export const AXE = readFileSync(fileURLToPath(new URL("../node_modules/axe-core/axe.min.js", import.meta.url)), "utf8");

/** A device that keeps passkeys, and whose person always agrees. Returns what makes it forget them. */
export async function addAuthenticator(context, page) {
  const session = await context.newCDPSession(page);
  await session.send("WebAuthn.enable");
  const { authenticatorId } = await session.send("WebAuthn.addVirtualAuthenticator", {
    options: {
      protocol: "ctap2",
      ctap2Version: "ctap2_1",
      transport: "internal",
      hasResidentKey: true,
      hasUserVerification: true,
      isUserVerified: true,
      automaticPresenceSimulation: true,
    },
  });
  return () => session.send("WebAuthn.clearCredentials", { authenticatorId });
}

/** The page of the first node, at the name that passkeys belong to. */
export const appOf = (cluster) => `${cluster.nodes[0].replace("127.0.0.1", "localhost")}/app`;

export const PASSWORD = "correct horse battery 7";

/** Registers a person in the app, with keys for this browser. */
export async function register(page, cluster, email, name, onProtect = async () => {}) {
  await page.goto(appOf(cluster));
  await page.getByRole("button", { name: "I have no account yet" }).click();
  await page.getByLabel("E-mail").fill(email);
  await page.getByRole("button", { name: "Send a code" }).click();
  await page.getByLabel("Code from the e-mail").fill(await cluster.code(email));
  await page.getByLabel("Your name").fill(name);
  await page.getByLabel("Password").fill(PASSWORD);
  const answered = page.waitForResponse((response) => response.url().endsWith("/auth/register"));
  await page.getByRole("button", { name: "Create an account" }).click();
  const { data } = await (await answered).json();
  const shown = page.locator("output.password");
  await shown.waitFor();
  const protectionPassword = await shown.textContent();
  await onProtect();
  await page.getByLabel("I have written it down").check();
  await page.getByRole("button", { name: "Go on" }).click();
  await page.getByRole("heading", { name: "Conversations" }).waitFor();
  return { userId: data.user_id, protectionPassword };
}

/** Signs a person of the cluster in, and gives this browser the keys. */
export async function restore(page, cluster, { email, password, protectionPassword }) {
  await page.goto(appOf(cluster));
  await page.getByLabel("E-mail").fill(email);
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByLabel("Protection password").fill(protectionPassword);
  await page.getByRole("button", { name: "Go on" }).click();
  await page.getByRole("heading", { name: "Conversations" }).waitFor();
}

export async function openAgent(page, cluster, agentId) {
  await page.goto(`${appOf(cluster)}#/a/${agentId}`);
  await page.getByRole("button", { name: "Go on" }).click();
  await page.getByLabel("Write a message").waitFor();
}

export async function say(page, text) {
  await page.getByLabel("Write a message").fill(text);
  await page.keyboard.press("Enter");
}

/** In the page, before its scripts: a push service that gives one address, and a person who agrees. */
export function pushStandIn({ endpoint = "http://127.0.0.1:9/a-secret-address", ...keys }) {
  const kept = "stand-in-subscription";
  const read = () => {
    const key = localStorage.getItem(kept);
    if (key === null) return null;
    const bytes = Uint8Array.from(key.split(","), Number);
    return {
      endpoint,
      options: { applicationServerKey: bytes.buffer },
      toJSON: () => ({ endpoint, keys }),
      unsubscribe: async () => (localStorage.removeItem(kept), true),
    };
  };
  PushManager.prototype.getSubscription = async () => read();
  PushManager.prototype.subscribe = async ({ applicationServerKey }) => {
    localStorage.setItem(kept, [...applicationServerKey].join());
    return read();
  };
  Object.defineProperty(Notification, "permission", { get: () => globalThis.permission ?? "default" });
  Notification.requestPermission = async () => (globalThis.permission = globalThis.answer ?? "granted");
}

/** The keys of a subscription. */
export function deviceKeys() {
  const pair = createECDH("prime256v1");
  return { p256dh: pair.generateKeys("base64url"), auth: randomBytes(16).toString("base64url") };
}

export async function isAccessible(page, name) {
  const results = await page.evaluate(() => globalThis.axe.run());
  const serious = results.violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  assert.deepEqual(serious.map(({ id, nodes }) => [name, id, nodes.map((node) => node.html)]), []);
}

/** Asks a function in the page until it says yes. Playwright's own way needs `eval`, which the policy forbids. */
export async function until(page, isTrue, ...parameters) {
  for (const end = Date.now() + 15_000; !(await page.evaluate(isTrue, ...parameters)); ) {
    if (Date.now() > end) throw new Error(`never true: ${isTrue}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

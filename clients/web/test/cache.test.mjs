// The encrypted cache: off until a person wants it, readable without a line, and gone when the sign-in ends.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { devCluster } from "@blindpipe/client/testing";
import { appOf, AXE, findBrowser, isAccessible, newPage, PASSWORD, register, startBrowser, until } from "./support.mjs";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";
const SECRET = "the tunnel is 4711 metres long";

let cluster;
let browser;

before(async () => {
  if (!program) return;
  cluster = await devCluster();
  browser = await startBrowser(program, cluster.nodes[0]);
});

after(() => browser?.close());

/** Everything in all databases, with bytes as Latin letters. The names of the rows are there too. */
function stored() {
  const texts = [];
  const settled = (request) =>
    new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
  const look = (value) => {
    if (value instanceof ArrayBuffer) return look(new Uint8Array(value));
    if (ArrayBuffer.isView(value)) return texts.push(new TextDecoder("latin1").decode(value));
    if (value instanceof CryptoKey) return texts.push(`key ${value.type} ${value.extractable}`);
    if (value instanceof Map) return look([...value.keys(), ...value.values()]);
    if (Array.isArray(value) || value instanceof Set) return value.forEach((each) => look(each));
    if (typeof value === "object" && value !== null) return look([...Object.keys(value), ...Object.values(value)]);
    texts.push(String(value));
  };
  return indexedDB.databases().then(async (all) => {
    for (const { name } of all) {
      const database = await settled(indexedDB.open(name));
      for (const store of database.objectStoreNames) {
        const rows = database.transaction(store).objectStore(store);
        const values = settled(rows.getAll());
        look([name, store, await settled(rows.getAllKeys()), await values]);
      }
      database.close();
    }
    return texts.join("\n");
  });
}

/** Whether the cache has rows. */
function isFilled() {
  return new Promise((resolve) => {
    const opening = indexedDB.open("blindpipe-cache");
    opening.onsuccess = () => {
      const count = opening.result.transaction("rows").objectStore("rows").count();
      count.onsuccess = () => {
        opening.result.close();
        resolve(count.result > 1);
      };
    };
  });
}

/** What a reader without the app finds. */
async function isUnreadable(page) {
  const all = await page.evaluate(stored);
  assert.ok(all.includes("blindpipe-cache"), "the cache was looked at");
  assert.ok(!all.includes("4711") && !all.includes("tunnel"), "a text is readable");
  assert.ok(!/key (secret|private) true/.test(all), "a key can be read");
  return all;
}

test("messages are kept on request alone, and read without the service", { skip, timeout: 120_000 }, async (t) => {
  const { page, context, faults } = await newPage(browser);
  page.setDefaultTimeout(20_000);
  await context.addInitScript(AXE);
  const bob = (await cluster.user("bob")).client;
  await bob.updateProfile({ display_name: "Bob Tunnelbuilder" });
  const email = `cache-${Date.now()}@example.com`;
  const { userId } = await register(page, cluster, email, "Ida");
  const talk = await bob.openDirect(userId);
  await talk.send(SECRET);
  const other = await bob.openGroup([userId], { title: "unopened" });
  const opened = `${appOf(cluster)}#/c/${talk.id}`;
  const away = async () => {
    await context.setOffline(true);
    await page.reload();
  };

  await t.test("nothing is kept before", async () => {
    await page.goto(opened);
    await page.locator("article", { hasText: SECRET }).waitFor();
    await page.evaluate(() => navigator.serviceWorker.ready.then(() => undefined));
    const all = await isUnreadable(page);
    assert.ok(!all.includes(`chat:${talk.id}`));
    await away();
    await page.getByText("The service cannot be reached.").waitFor();
    await context.setOffline(false);
    await page.locator("article", { hasText: SECRET }).waitFor();
  });

  await t.test("the switch says what it protects from, and fills the cache", async () => {
    await page.goto(`${appOf(cluster)}#/settings/offline`);
    await page.getByText("The copy is off.").waitFor();
    await isAccessible(page, "the switch");
    await page.getByRole("button", { name: "Keep an encrypted copy" }).click();
    await page.getByText("The copy is on.").waitFor();
    await until(page, isFilled);
    assert.ok((await isUnreadable(page)).includes(`chat:${talk.id}`));
  });

  await t.test("what arrives in a conversation that is not open is kept too", async () => {
    const { message_id } = await other.send("taken back later");
    await other.send(`also ${SECRET}`);
    await page.goto(`${appOf(cluster)}#/`);
    await page.locator(".list a", { hasText: "unopened" }).locator(".count", { hasText: "2" }).waitFor();
    for await (const received of other.history()) {
      if (received.message.message_id === message_id) await other.delete(received);
    }
    // The deletion is written with the next event.
    await other.send("the last one");
    await page.locator(".list a", { hasText: "unopened" }).locator(".count", { hasText: /[34]/ }).waitFor();
    await page.waitForTimeout(1_000);
    await away();
    await page.locator(".list a", { hasText: "unopened" }).click();
    await page.locator("article", { hasText: `also ${SECRET}` }).waitFor();
    await page.getByText("This message was deleted.").first().waitFor();
    assert.equal(await page.getByText("taken back later").count(), 0);
  });

  await t.test("the list, names and old messages are there without the service", async () => {
    await page.locator(".list a", { hasText: "Bob Tunnelbuilder" }).click();
    const article = page.locator("article", { hasText: SECRET });
    await article.waitFor();
    await article.getByText("Bob Tunnelbuilder").waitFor();
    await page.getByText("Connecting…").waitFor();
    await page.getByLabel("Write a message").fill("from the tunnel");
    await page.keyboard.press("Enter");
    await page.getByText("waits for the connection").waitFor();
    await talk.send("said meanwhile");
    await context.setOffline(false);
    await page.locator(".feed article", { hasText: "said meanwhile" }).waitFor();
    await page.locator(".feed article.own", { hasText: "from the tunnel" }).waitFor();
    assert.equal(await page.locator("article", { hasText: SECRET }).count(), 1);
    await isUnreadable(page);
  });

  await t.test("the switch erases it", async () => {
    await page.goto(`${appOf(cluster)}#/settings/offline`);
    await page.getByRole("button", { name: "Erase the copy" }).click();
    await page.getByText("The copy is off.").waitFor();
    assert.ok(!(await page.evaluate(stored)).includes(`chat:${talk.id}`));
    await page.getByRole("button", { name: "Keep an encrypted copy" }).click();
    await until(page, isFilled);
  });

  await t.test("a revoked browser erases it when it hears of it", async () => {
    await page.goto("about:blank");
    const second = await newPage(browser);
    await second.page.goto(appOf(cluster));
    await second.page.getByLabel("E-mail").fill(email);
    await second.page.getByLabel("Password").fill(PASSWORD);
    const answered = second.page.waitForResponse((response) => response.url().endsWith("/auth/login"));
    await second.page.getByRole("button", { name: "Sign in" }).click();
    const { access_token } = (await (await answered).json()).data;
    const statuses = await second.page.evaluate(async (token) => {
      const headers = { authorization: `Bearer ${token}` };
      const { data } = await (await fetch("/users/me/devices", { headers })).json();
      const others = data.filter(({ has_keys }) => has_keys).map(({ device_id }) => device_id);
      const path = (id) => `/users/me/devices/${encodeURIComponent(id)}`;
      return Promise.all(others.map((id) => fetch(path(id), { method: "DELETE", headers }).then(({ status }) => status)));
    }, access_token);
    assert.deepEqual(statuses, [200]);
    await page.goto(opened);
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
    assert.equal(await page.getByText(SECRET).count(), 0);
    const all = await page.evaluate(stored);
    assert.ok(!all.includes(`chat:${talk.id}`));
    await second.context.close();
  });

  await t.test("a sign-out erases it", async () => {
    await page.getByLabel("E-mail").fill(email);
    await page.getByLabel("Password").fill(PASSWORD);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.locator("article", { hasText: SECRET }).waitFor();
    await page.goto(`${appOf(cluster)}#/settings/offline`);
    await page.getByRole("button", { name: "Keep an encrypted copy" }).click();
    await until(page, isFilled);
    await page.goto(`${appOf(cluster)}#/settings`);
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Go on" }).click();
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
    const all = await page.evaluate(stored);
    assert.ok(!all.includes(`chat:${talk.id}`) && !all.includes("key private"));
    assert.deepEqual(faults, []);
  });

  await context.close();
});

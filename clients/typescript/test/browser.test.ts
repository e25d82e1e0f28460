// The encryption in a real browser: the vectors, the table of states, keys kept in IndexedDB.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import * as e2ee from "@blindpipe/client/e2ee";
import { Browser, findBrowser } from "./browser.js";

const program = findBrowser();
const skip = program ? false : "no Chromium is here: `target/debug/devcluster fetch` gets one";
let browser: Browser;

before(async () => {
  if (program) browser = await Browser.start(program);
});

after(() => browser?.stop());

for (const name of ["vectors", "states"]) {
  test(`${name} in a browser`, { skip }, async () => {
    const results = await browser.evaluate<[string, string | null][]>(`(async () => {
      const { tests } = await import("node:test");
      const before = tests.length;
      await import("/build/test/${name}.test.js");
      const results = [];
      for (const { name, run } of tests.slice(before)) {
        const fault = Promise.resolve().then(run).then(() => null, (error) => String(error.stack));
        results.push([name, await fault]);
      }
      return results;
    })()`);
    assert(results.length > 10);
    assert.deepEqual(
      results.filter(([, fault]) => fault !== null),
      [],
    );
  });
}

test(
  "keys stay in IndexedDB, unreadable for scripts, and seal what Node opens",
  { skip },
  async () => {
    const userId = e2ee.newUlid();
    const conversation = e2ee.newUlid();
    const node = await e2ee.importKeys(e2ee.generatePrivateKeys());
    const secret = e2ee.newSecret();
    const place = { kind: e2ee.Kind.message, clientMessageId: e2ee.newUlid() };
    const sealed = await browser.evaluate<Record<string, string>>(`(async () => {
    const e2ee = await import("@blindpipe/client/e2ee");
    const within = (request) => new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    const opening = indexedDB.open("keys");
    opening.onupgradeneeded = () => opening.result.createObjectStore("kept");
    const database = await within(opening);
    const made = await e2ee.importKeys(e2ee.generatePrivateKeys());
    await within(database.transaction("kept", "readwrite").objectStore("kept").put(made, "device"));
    const keys = await within(database.transaction("kept").objectStore("kept").get("device"));
    for (const key of [keys.signing, keys.exchange]) {
      const isRead = await crypto.subtle.exportKey("pkcs8", key).then(() => true, () => false);
      if (isRead || key.extractable) throw new Error("a script has read a private key");
    }
    const conversation = e2ee.idBytes("${conversation}");
    const raw = e2ee.fromHex("${e2ee.hex(secret)}");
    const secret = await e2ee.EpochKey.ofEpoch(raw, conversation, 1);
    const sender = { type: "user", id: "${userId}" };
    const envelope = await e2ee.seal({
      secret, sender, keys,
      place: ${JSON.stringify(place)},
      content: { type: "text", text: "from a browser" },
      time: Date.now(),
    });
    return {
      envelope: e2ee.base64(envelope),
      publicKey: e2ee.base64(keys.publicKey),
      signingPublicKey: e2ee.base64(keys.signingPublicKey),
    };
  })()`);
    const held = await e2ee.EpochKey.ofEpoch(secret, e2ee.idBytes(conversation), 1);
    const opened = await e2ee.open({
      envelope: e2ee.fromBase64(sealed["envelope"]!),
      place,
      conversation: e2ee.idBytes(conversation),
      sender: { type: "user", id: userId },
      secret: () => held,
      senderKeys: () => ({
        publicKey: e2ee.fromBase64(sealed["publicKey"]!),
        signingPublicKey: e2ee.fromBase64(sealed["signingPublicKey"]!),
      }),
    });
    assert.equal(opened.content["text"], "from a browser");

    // And back: Node seals, the browser opens.
    const sender = { type: "agent", id: e2ee.newUlid() } as const;
    const content = { type: "text", text: "from Node" };
    const envelope = await e2ee.seal({
      secret: held,
      sender,
      place,
      keys: node,
      content,
      time: Date.now(),
    });
    const text = await browser.evaluate<string>(`(async () => {
    const e2ee = await import("@blindpipe/client/e2ee");
    const conversation = e2ee.idBytes("${conversation}");
    const raw = e2ee.fromHex("${e2ee.hex(secret)}");
    const secret = await e2ee.EpochKey.ofEpoch(raw, conversation, 1);
    const opened = await e2ee.open({
      envelope: e2ee.fromBase64("${e2ee.base64(envelope)}"),
      place: ${JSON.stringify(place)},
      conversation,
      sender: ${JSON.stringify(sender)},
      secret: () => secret,
      senderKeys: () => ({
        publicKey: e2ee.fromBase64("${e2ee.base64(node.publicKey)}"),
        signingPublicKey: e2ee.fromBase64("${e2ee.base64(node.signingPublicKey)}"),
      }),
    });
    return opened.content.text;
  })()`);
    assert.equal(text, "from Node");
  },
);

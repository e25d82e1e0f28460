// Pushes: a push service as browsers' makers run one, and the worker that a push wakes.
import assert from "node:assert/strict";
import { createDecipheriv, createECDH, createPublicKey, hkdfSync, randomBytes, verify } from "node:crypto";
import { createServer } from "node:http";
import { appOf } from "./support.mjs";

const SHOWN_TIMEOUT_MS = 12_000;

/**
 * The worker in the browser, told of pushes as by a push service while no page of the app is open. A stand-in keeps what it
 * shows: this browser has no notifications.
 */
export async function pushedTo(context, page, cluster, name = "reading-sw.js") {
  const worker = context.serviceWorkers().find((each) => each.url().endsWith(`/app/${name}`));
  await worker.evaluate(() => {
    globalThis.shown = new Map();
    registration.showNotification = async (title, { tag, ...options }) => void globalThis.shown.set(tag, { title, tag, ...options });
  });
  const { origin } = new URL(appOf(cluster));
  // A page of the same address that the worker does not rule.
  await page.goto(`${origin}/health`);
  const devtools = await context.newCDPSession(page);
  const registered = new Promise((resolve) => {
    devtools.on("ServiceWorker.workerRegistrationUpdated", ({ registrations: [first] }) => {
      if (first) resolve(first.registrationId);
    });
  });
  await devtools.send("ServiceWorker.enable");
  const registrationId = await registered;
  const shown = (tag) => worker.evaluate((wanted) => globalThis.shown.get(wanted), tag);
  const shows = async (tag, fits = () => true) => {
    for (const end = Date.now() + SHOWN_TIMEOUT_MS; ; await page.waitForTimeout(50)) {
      const found = await shown(tag);
      if (found && fits(found)) return found;
      if (Date.now() > end) assert.fail(`not shown: ${tag}, but ${JSON.stringify(found)}`);
    }
  };
  return {
    shows,
    push: (content) =>
      devtools.send("ServiceWorker.deliverPushMessage", { origin, registrationId, data: JSON.stringify(content) }),
    press: (notification, action) =>
      worker.evaluate(
        ([pressed, action]) => {
          const event = new Event("notificationclick");
          dispatchEvent(Object.assign(event, { action, notification: { ...pressed, close: () => {} }, waitUntil: () => {} }));
        },
        [notification, action],
      ),
  };
}

const KEY_BYTES = 32;
const AES_KEY_BYTES = 16;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
/** Salt, size of a record, and length of the sender's point. */
const HEADER_BYTES = 21;
/** The server waits 30 seconds for a socket whose end it has not seen. */
const PUSH_TIMEOUT_MS = 45_000;

const derive = (key, salt, info, length) => Buffer.from(hkdfSync("sha256", key, salt, info, length));

/** A push service with one device. It verifies the server's proof (RFC 8292), and the device opens the push (RFC 8291). */
export class PushService {
  #device = createECDH("prime256v1");
  #auth = randomBytes(16);
  #pushes = [];
  #faults = [];
  #server;

  static async start() {
    const service = new PushService();
    service.keys = { p256dh: service.#device.generateKeys("base64url"), auth: service.#auth.toString("base64url") };
    service.#server = createServer((request, response) => void service.#hear(request, response));
    await new Promise((resolve) => service.#server.listen(0, "127.0.0.1", resolve));
    service.origin = `http://127.0.0.1:${service.#server.address().port}`;
    return service;
  }

  /** The subscription that a browser gets here. */
  get subscription() {
    return { endpoint: `${this.origin}/send/a-secret-address`, ...this.keys };
  }

  async #hear(request, response) {
    try {
      const body = Buffer.concat(await request.toArray());
      assert.equal(request.headers["content-encoding"], "aes128gcm");
      this.#prove(request.headers.authorization);
      this.#pushes.push(JSON.parse(this.#open(body)));
      response.writeHead(201).end();
    } catch (error) {
      this.#faults.push(error);
      response.writeHead(400).end();
    }
  }

  #prove(authorization) {
    const [, token, key] = /^vapid t=([^,]+), ?k=(.+)$/.exec(authorization);
    const point = Buffer.from(key, "base64url");
    const [x, y] = [point.subarray(1, 33), point.subarray(33)].map((half) => half.toString("base64url"));
    const publicKey = createPublicKey({ key: { kty: "EC", crv: "P-256", x, y }, format: "jwk" });
    const [head, claims, signature] = token.split(".");
    const options = { key: publicKey, dsaEncoding: "ieee-p1363" };
    assert.ok(verify("sha256", Buffer.from(`${head}.${claims}`), options, Buffer.from(signature, "base64url")));
    assert.equal(JSON.parse(Buffer.from(claims, "base64url")).aud, this.origin);
  }

  #open(body) {
    const salt = body.subarray(0, 16);
    const senderEnd = HEADER_BYTES + body[HEADER_BYTES - 1];
    const sender = body.subarray(HEADER_BYTES, senderEnd);
    const info = Buffer.concat([Buffer.from("WebPush: info\0"), this.#device.getPublicKey(), sender]);
    const key = derive(this.#device.computeSecret(sender), this.#auth, info, KEY_BYTES);
    const contentKey = derive(key, salt, "Content-Encoding: aes128gcm\0", AES_KEY_BYTES);
    const nonce = derive(key, salt, "Content-Encoding: nonce\0", NONCE_BYTES);
    const cipher = createDecipheriv("aes-128-gcm", contentKey, nonce);
    cipher.setAuthTag(body.subarray(-TAG_BYTES));
    const padded = Buffer.concat([cipher.update(body.subarray(senderEnd, -TAG_BYTES)), cipher.final()]);
    // A single record ends with a 2, and zeros after it.
    return padded.subarray(0, padded.lastIndexOf(2)).toString();
  }

  /** The oldest push that was not taken yet. */
  async next() {
    for (const end = Date.now() + PUSH_TIMEOUT_MS; this.#pushes.length === 0; ) {
      if (this.#faults.length > 0) throw this.#faults[0];
      if (Date.now() > end) assert.fail("no push came");
      await new Promise((resolve) => setTimeout(resolve, 25));
    }
    return this.#pushes.shift();
  }

  stop() {
    this.#server.closeAllConnections();
    this.#server.close();
  }
}

// Anybody reaches a webhook's server: nothing that comes ends it, or fills it.
import assert from "node:assert/strict";
import { createHmac, randomBytes, randomInt } from "node:crypto";
import { connect } from "node:net";
import { test } from "node:test";
import { Agent, UsageError, toNode, verifyDelivery } from "@blindpipe/client/agent";
import { AgentKey, newUlid } from "@blindpipe/client/e2ee";
import { listening, signed } from "./support.js";

const SECRET = "a secret of one's own making";
const MAX_BYTES = 2 * 1024 * 1024;

/** An agent that has no service to start with. */
function agent(): Agent {
  const key = AgentKey.random().toText();
  return new Agent({ url: "http://127.0.0.1:9", agentId: newUlid(), token: "hsk_none", key });
}

/** The bytes that a server answers to these; "" if it says nothing. */
function say(url: string, bytes: string | Uint8Array, isCut: boolean): Promise<string> {
  const { port } = new URL(url);
  return new Promise((resolve) => {
    let answer = "";
    const socket = connect(Number(port), "127.0.0.1");
    socket.on("data", (data) => (answer += data.toString("latin1")));
    socket.on("error", () => {});
    socket.on("close", () => resolve(answer));
    socket.setTimeout(2_000, () => socket.destroy());
    socket.write(bytes, () => {
      if (isCut) setTimeout(() => socket.destroy(), 10);
      else socket.end();
    });
  });
}

async function fuzzed(rows: readonly (readonly [bytes: string | Uint8Array, isCut?: boolean])[]) {
  const { server, url } = await listening(toNode(agent().webhook(SECRET)));
  const rejections: unknown[] = [];
  const note = (error: unknown): void => void rejections.push(error);
  process.on("unhandledRejection", note);
  try {
    const answers: string[] = [];
    for (const [bytes, isCut = false] of rows) {
      answers.push((await say(url, bytes, isCut)).split("\r\n")[0]!);
    }
    // It is still there, and knows what is genuine.
    const challenge = JSON.stringify({ event: "webhook.verify", data: { challenge: "x" } });
    const { headers } = signed(SECRET, challenge);
    const genuine = await fetch(url, { method: "POST", headers, body: challenge });
    assert.deepEqual([genuine.status, await genuine.json()], [200, { challenge: "x" }]);
    await new Promise((resolve) => setTimeout(resolve, 50));
    assert.deepEqual(rejections, []);
    return answers;
  } finally {
    process.off("unhandledRejection", note);
    server.closeAllConnections();
    server.close();
  }
}

const HOST = "Host: x\r\n";

test("a request that is none ends no server", async () => {
  const answers = await fuzzed([
    [`TRACE / HTTP/1.1\r\n${HOST}\r\n`],
    [`OPTIONS * HTTP/1.1\r\n${HOST}\r\n`],
    [`POST / HTTP/1.1\r\n${HOST}Content-Length: 5\r\n\r\n{}`, true],
    [`POST / HTTP/1.1\r\n${HOST}Transfer-Encoding: chunked\r\n\r\n5\r\n{}`, true],
    [`POST http://[ HTTP/1.1\r\n${HOST}Content-Length: 0\r\n\r\n`],
    [`POST // HTTP/1.1\r\n${HOST}Content-Length: 0\r\n\r\n`],
    [`POST / HTTP/1.1\r\n${HOST}Webhook-Timestamp: \u00ff\r\nContent-Length: 0\r\n\r\n`],
    [`GET / HTTP/1.1\r\n${HOST}\r\n`],
    [`CONNECT x:1 HTTP/1.1\r\n${HOST}\r\n`],
    ["\r\n\r\n"],
  ]);
  for (const [at, status] of [400, "40[01]", null, null, "40[01]"].entries()) {
    const wanted = status === null ? /^$/ : new RegExp(`^HTTP/1.1 ${status} `);
    assert.match(answers[at]!, wanted, `row ${at}`);
  }
});

test("random bytes, and requests that were changed at random, end no server", async () => {
  const whole = `POST /hook HTTP/1.1\r\n${HOST}webhook-id: m\r\nwebhook-timestamp: 1\r\nwebhook-signature: v1,AAAA\r\ncontent-length: 12\r\n\r\n{"event":{}}`;
  const rows = Array.from({ length: 300 }, (_, i): [Uint8Array, boolean] => {
    const bytes = Buffer.from(whole, "latin1");
    if (i % 5 === 0) return [randomBytes(randomInt(1, 400)), i % 2 === 0];
    for (let n = randomInt(1, 4); n > 0; n--) bytes[randomInt(bytes.length)] = randomInt(256);
    return [bytes.subarray(0, randomInt(1, bytes.length + 1)), i % 2 === 0];
  });
  await fuzzed(rows);
});

test("a body is bounded before its signature is looked at", async () => {
  const large = `POST / HTTP/1.1\r\n${HOST}Content-Length: ${MAX_BYTES + 1}\r\n\r\n`;
  const chunk = `${(65_536).toString(16)}\r\n${"x".repeat(65_536)}\r\n`;
  const endless = `POST / HTTP/1.1\r\n${HOST}Transfer-Encoding: chunked\r\n\r\n${chunk.repeat(40)}`;
  const answers = await fuzzed([[large], [endless]]);
  for (const answer of answers) assert.match(answer, /^HTTP\/1.1 413 /);

  const receive = agent().webhook(SECRET);
  let pulled = 0;
  const body = new ReadableStream<Uint8Array>({
    pull: (stream) => {
      pulled += 65_536;
      stream.enqueue(new Uint8Array(65_536));
    },
  });
  const post = { method: "POST", body, duplex: "half" } as RequestInit;
  const request = new Request("http://agent.invalid/", post);
  assert.equal((await receive(request)).status, 413);
  assert(pulled < 2 * MAX_BYTES, String(pulled));
  const cut = new ReadableStream<Uint8Array>({ start: (stream) => stream.error(new Error("cut")) });
  const half = { method: "POST", body: cut, duplex: "half" } as RequestInit;
  assert.equal((await receive(new Request("http://agent.invalid/", half))).status, 400);
  const most = "x".repeat(MAX_BYTES);
  const full = new Request("http://agent.invalid/", { method: "POST", body: most });
  assert.equal((await receive(full)).status, 401);
});

test("a genuine delivery of something else is refused, and a handler that fails is a fault", async () => {
  const receive = agent().webhook(SECRET);
  for (const body of ["no json", "null", "7", ""]) {
    assert.equal((await receive(signed(SECRET, body))).status, 400, body);
  }
  const failing = toNode(() => Promise.reject(new Error("a fault")));
  const { server, url } = await listening(failing);
  assert.equal((await fetch(url, { method: "POST", body: "{}" })).status, 500);
  server.closeAllConnections();
  server.close();
});

test("a secret that is empty, short or unreadable is none", async () => {
  const short = `whsec_${Buffer.alloc(23).toString("base64")}`;
  const refused = ["", "short", "x".repeat(23), "whsec_", short, "whsec_no base64 at all ......", []];
  for (const secret of refused) {
    assert.throws(() => agent().webhook(secret), UsageError);
    if (typeof secret === "string") {
      assert.throws(() => agent().webhook([SECRET, secret]), UsageError);
    }
  }
  // As with an unset variable: nobody forges with an empty key.
  const signature = createHmac("sha256", "").update("m.1.{}").digest("base64");
  const headers = new Headers({
    "webhook-id": "m",
    "webhook-timestamp": "1",
    "webhook-signature": `v1,${signature}`,
  });
  const body = new TextEncoder().encode("{}");
  await assert.rejects(verifyDelivery("", headers, body, 1), UsageError);
  const least = `whsec_${Buffer.alloc(24, 1).toString("base64")}`;
  assert.equal(await verifyDelivery(least, headers, body, 1), false);
});

// Random things, sealed here and opened by the Rust crate, and the other way round.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomBytes, randomInt } from "node:crypto";
import { createInterface } from "node:readline";
import { test } from "node:test";
import * as e2ee from "@blindpipe/client/e2ee";

const PROGRAM = process.env["INTEROP"];
const ROUNDS = Number(process.env["INTEROP_ROUNDS"] ?? 60);
const skip = PROGRAM ? false : "INTEROP names the Rust example `interop`; make sets it";
const { hex } = e2ee;
const bytes = e2ee.fromHex;

type Json = Record<string, unknown>;

/** Asks the Rust program, a line for a line. */
function rust(): { ask: (request: Json) => Promise<Json>; end: () => void } {
  const child = spawn(PROGRAM!, { stdio: ["pipe", "pipe", "inherit"] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return {
    async ask(request) {
      child.stdin.write(`${JSON.stringify(request)}\n`);
      const answer = JSON.parse(String((await lines.next()).value)) as Json;
      assert.equal(answer["refused"], undefined, `${JSON.stringify(request)} was refused`);
      return answer;
    },
    end: () => child.stdin.end(),
  };
}

function pick<T>(...choices: readonly T[]): T {
  return choices[randomInt(choices.length)]!;
}

function randomText(max: number): string {
  const parts = ["a", "ü", "🙂", '"', "\\", "\n", "\u2028", "0", " ", "日"];
  return Array.from({ length: randomInt(max) }, () => pick(...parts)).join("");
}

const id = (): string => randomBytes(16).toString("hex");

interface Random {
  readonly place: e2ee.Place;
  readonly json: Json;
}

function randomPlace(isUser: boolean): Random {
  const kind = isUser ? pick(1, 4) : pick(1, 2, 3);
  switch (kind) {
    case 1: {
      const clientMessageId = id();
      const inReplyTo = pick(null, id());
      const json = { kind, client_message_id: clientMessageId, in_reply_to: inReplyTo };
      return { place: { kind, clientMessageId, inReplyTo }, json };
    }
    case 2: {
      const [streamId, n] = [e2ee.newUlid(), randomInt(100_000)];
      return { place: { kind, streamId, n }, json: { kind, stream_id: streamId, n } };
    }
    case 3: {
      const [userId, requestId, tool, scope] = [id(), randomText(20), randomText(20), "a:b"];
      const deviceId = pick(null, "laptop-1");
      const json = { asked: userId, request_id: requestId, tool, scope, device_id: deviceId };
      return { place: { kind, userId, requestId, tool, scope, deviceId }, json: { kind, ...json } };
    }
    default: {
      const digest = e2ee.fromHex(id() + id());
      const [requestId, status, reason] = [randomText(20), "executed", pick(null, "because")];
      const json = { kind: 4, digest: hex(digest), request_id: requestId, status, reason };
      return { place: { kind: 4, digest, requestId, status, reason }, json };
    }
  }
}

interface Keyed {
  readonly secret: e2ee.PrivateKeys;
  readonly pair: e2ee.KeyPair;
  readonly privateJson: Json;
  readonly publicJson: Json;
}

async function randomKeys(): Promise<Keyed> {
  const secret = e2ee.generatePrivateKeys();
  const pair = await e2ee.importKeys(secret);
  return {
    secret,
    pair,
    privateJson: {
      x25519_private: hex(secret.exchange),
      ed25519_seed: hex(secret.signingSeed),
    },
    publicJson: {
      public_key: hex(pair.publicKey),
      signing_public_key: hex(pair.signingPublicKey),
    },
  };
}

test("envelopes, by everyone's lane, by an agent's lane and by slot", { skip }, async () => {
  const { ask, end } = rust();
  for (let round = 0; round < ROUNDS; round++) {
    const isUser = randomInt(2) === 0;
    const sender: e2ee.Principal = { type: isUser ? "user" : "agent", id: id() };
    const keys = await randomKeys();
    const conversation = bytes(id());
    const epoch = randomInt(1, 2 ** 32 - 1);
    const secret = e2ee.newSecret();
    const all = await e2ee.EpochKey.ofEpoch(secret, conversation, epoch);
    const isLane = !isUser && randomInt(2) === 0;
    const reader = isLane ? bytes(sender.id) : bytes(id());
    const laneSecret = await e2ee.agentLaneSecret(secret, conversation, epoch, reader);
    const lane = await e2ee.EpochKey.ofLane(laneSecret, conversation, epoch, all.sid, reader);
    const { place, json } = randomPlace(isUser);
    const content = JSON.stringify({ type: "text", text: randomText(400), n: randomInt(1000) });
    const time = randomInt(2 ** 47);
    const readers = isLane ? [] : pick([], [reader], [reader, bytes(id())]);
    readers.sort((one, other) => (hex(one) < hex(other) ? -1 : 1));
    const about = {
      conversation: hex(conversation),
      epoch,
      sender: hex(e2ee.principalBytes(sender)),
      place: json,
    };
    const laneJson = { lane_agent: hex(reader), lane_secret: hex(laneSecret), sid: hex(all.sid) };
    const isReader = isLane || readers.length > 0;

    const envelope = await e2ee.seal({
      secret: isLane ? lane : all,
      place,
      sender,
      keys: keys.pair,
      content: new TextEncoder().encode(content),
      addressed: readers,
      time,
    });
    for (const key of [{ secret: hex(secret) }, ...(isReader ? [laneJson] : [])]) {
      const answer = await ask({
        do: "open",
        ...about,
        ...key,
        ...keys.publicJson,
        envelope: hex(envelope),
      });
      assert.deepEqual([answer["content"], answer["time"]], [content, time]);
    }

    const made = await ask({
      do: "seal",
      ...about,
      ...(isLane ? laneJson : { secret: hex(secret) }),
      ...keys.privateJson,
      readers: readers.map(hex),
      time,
      view: "00".repeat(20),
      content,
    });
    for (const held of isReader ? [all, lane] : [all]) {
      const opened = await e2ee.open({
        envelope: bytes(String(made["envelope"])),
        place,
        conversation,
        sender,
        secret: () => held,
        senderKeys: () => keys.pair,
      });
      assert.equal(new TextDecoder().decode(opened.contentBytes), content);
      assert.equal(opened.time, time);
    }
  }
  end();
});

test("wraps", { skip }, async () => {
  const { ask, end } = rust();
  for (let round = 0; round < ROUNDS; round++) {
    const [rotatorKeys, recipientKeys] = [await randomKeys(), await randomKeys()];
    const rotator: e2ee.Principal = { type: "user", id: id() };
    const recipient: e2ee.Principal = { type: pick("user", "agent"), id: id() };
    const addressed = recipient.type === "agent" && randomInt(2) === 0;
    const conversation = bytes(id());
    const epoch = randomInt(1, 2 ** 32 - 1);
    const secret = e2ee.newSecret();
    const sid = await e2ee.secretId(secret, conversation, epoch);
    const lane = await e2ee.agentLaneSecret(secret, conversation, epoch, bytes(recipient.id));
    const given = addressed ? lane : secret;
    const previous = bytes(id());
    const time = randomInt(2 ** 47);
    const about = {
      conversation: hex(conversation),
      epoch,
      recipient: hex(e2ee.principalBytes(recipient)),
    };

    const wrap = await e2ee.sealWrap({
      kind: addressed ? 2 : 1,
      secret: given,
      sid,
      previousSid: previous,
      conversation,
      epoch,
      recipient,
      recipientKeys: recipientKeys.pair,
      rotator,
      rotatorKeys: rotatorKeys.pair,
      madeAt: time,
    });
    const opened = await ask({
      do: "unwrap",
      ...about,
      wrap: hex(e2ee.fromBase64(wrap)),
      ...recipientKeys.privateJson,
      ...rotatorKeys.publicJson,
    });
    assert.equal(opened["secret"], hex(given));
    assert.deepEqual([opened["sid"], opened["previous"]], [hex(sid), hex(previous)]);

    const made = await ask({
      do: "wrap",
      ...about,
      secret: hex(secret),
      previous: hex(previous),
      rotator: rotator.id,
      ...rotatorKeys.privateJson,
      time,
      ...recipientKeys.publicJson,
      addressed,
    });
    const text = e2ee.base64(bytes(String(made["wrap"])));
    const own = await e2ee.openWrap(text, conversation, epoch, recipient, recipientKeys.pair);
    assert.equal(own.secret.kind, addressed ? 2 : 1);
    assert.equal(hex(own.sid), hex(sid));
    assert.equal(own.madeAt, time);
    assert(await own.verify(rotatorKeys.pair));
  }
  end();
});

test("files", { skip }, async () => {
  const { ask, end } = rust();
  for (const length of [0, 1, 65_535, 65_536, 65_537, 200_000]) {
    const content = Uint8Array.from(randomBytes(length));
    const sealed = await e2ee.sealFile(content);
    const opened = await ask({
      do: "open_file",
      file: hex(sealed.ciphertext),
      key: hex(sealed.key),
      sha256: sealed.sha256,
    });
    assert.equal(opened["content"], hex(content));
    const made = await ask({ do: "seal_file", content: hex(content) });
    const key = bytes(String(made["key"]));
    const file = bytes(String(made["file"]));
    assert.deepEqual(await e2ee.openFile(file, key, String(made["sha256"])), content);
  }
  end();
});

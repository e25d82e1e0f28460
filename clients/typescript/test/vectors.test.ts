// The committed vectors, which the Rust crate makes and every language checks.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as e2ee from "@blindpipe/client/e2ee";
import { downloadFile } from "#dist/core/files.js";
import { concat } from "#dist/e2ee/bytes.js";
import { isWithinBounds, sealBackupWithNonce } from "#dist/e2ee/backup.js";
import { sealWithSalt } from "#dist/e2ee/envelope.js";
import { sealFileWithSalt } from "#dist/e2ee/file.js";
import { gcmSeal } from "#dist/e2ee/primitives.js";
import { Closed } from "#dist/errors.js";
import { HookCaller, CONSOLE } from "#dist/hooks.js";
import { Http } from "#dist/transport/http.js";
import { type Vector, halves, pair, placeOf, principal, read, reasonOf } from "./vector-support.js";

const bytes = e2ee.fromHex;
const { hex } = e2ee;

test("keys, agent strings and refused keys", async () => {
  const vectors = read("keys");
  for (const keys of [...vectors.devices, ...vectors.agents]) {
    const own = await pair(keys);
    assert.equal(hex(own.publicKey), keys.public_key);
    assert.equal(hex(own.signingPublicKey), keys.signing_public_key);
    assert.equal(hex(own.keyId), keys.key_id);
    assert(await e2ee.isUsable(own));
    assert.equal(own.signing.extractable || own.exchange.extractable, false);
  }
  for (const agent of vectors.agents) {
    const seed = e2ee.AgentKey.parse(agent.string);
    assert.equal(seed.toText(), agent.string);
    assert.equal(hex((await seed.keys()).keyId), agent.key_id);
    assert.equal(JSON.stringify({ seed }).includes(agent.string), false);
  }
  for (const text of vectors.agent_strings_refused) {
    assert.throws(() => e2ee.AgentKey.parse(text), e2ee.UsageError, text);
  }
  const device = halves(vectors.devices[0]);
  for (const text of vectors.signing_keys_refused) {
    for (const signingPublicKey of [bytes(text), withHighBit(bytes(text))]) {
      assert.equal(await e2ee.isUsable({ ...device, signingPublicKey }), false, text);
    }
  }
  for (const text of vectors.public_keys_refused) {
    for (const publicKey of [bytes(text), withHighBit(bytes(text))]) {
      assert.equal(await e2ee.isUsable({ ...device, publicKey }), false, text);
    }
  }
});

function withHighBit(key: e2ee.Bytes): e2ee.Bytes {
  const set = key.slice();
  set[31]! |= 0x80;
  return set;
}

test("the secret of an epoch and its lanes", async () => {
  const { epoch } = read("keys");
  const conversation = bytes(epoch.conversation);
  const secret = bytes(epoch.secret);
  const agent = bytes(epoch.addressed_agent);
  assert.equal(hex(await e2ee.secretId(secret, conversation, epoch.epoch)), epoch.sid);
  const everyone = await e2ee.laneSecret(secret, conversation, epoch.epoch, null);
  assert.equal(hex(everyone), epoch.lane_everyone);
  const lane = await e2ee.agentLaneSecret(secret, conversation, epoch.epoch, agent);
  assert.equal(hex(lane), epoch.lane_addressed);
});

test("introductions", async () => {
  for (const each of read("introductions").cases) {
    const by = await pair(each.by);
    const owner = principal(each.owner);
    const keys = halves(each);
    const made = await e2ee.introduce(by, owner, each.device_id ?? "", keys);
    assert.equal(hex(made.signature), each.signature);
    assert(await e2ee.verifyIntroduction(by, owner, each.device_id ?? "", keys, made.signature));
    assert(!(await e2ee.verifyIntroduction(by, owner, "other", keys, made.signature)));
  }
});

test("wraps open, and what is made here opens too", async () => {
  const vectors = read("wraps");
  for (const each of vectors.cases) {
    const keys = await pair(each.recipient_keys);
    const rotator = await pair(each.rotator_keys);
    const conversation = bytes(vectors.conversation);
    const { epoch } = vectors;
    const recipient = principal(each.recipient);
    const wrap = e2ee.base64(bytes(each.wrap));
    const opened = await e2ee.openWrap(wrap, conversation, epoch, recipient, keys);
    assert.equal(opened.secret.kind, each.kind);
    assert.equal(hex(opened.sid), each.sid);
    assert.equal(hex(opened.previousSid), each.previous);
    assert.equal(hex(e2ee.principalBytes(opened.rotator)), each.rotator);
    assert.equal(hex(opened.rotatorKeyId), each.rotator_key);
    assert.equal(opened.madeAt, each.time);
    assert(await opened.verify(rotator));
    assert(!(await opened.verify(keys)));
    const again = await e2ee.sealWrap({
      kind: each.kind,
      secret: bytes(each.secret),
      sid: bytes(each.sid),
      previousSid: bytes(each.previous),
      conversation,
      epoch,
      recipient,
      recipientKeys: keys,
      rotator: opened.rotator,
      rotatorKeys: rotator,
      madeAt: each.time,
    });
    const own = await e2ee.openWrap(again, conversation, epoch, recipient, keys);
    assert(await own.verify(rotator));
  }
  assert.equal(e2ee.NOT_GIVEN, e2ee.base64(bytes(vectors.not_given)));
});

test("contents that may be sealed, and others", () => {
  const { accepted, refused } = read("contents");
  for (const text of accepted) e2ee.decodeContent(bytes(text));
  for (const text of refused) {
    assert.throws(() => e2ee.decodeContent(bytes(text)), { reason: "not_json" }, text.slice(0, 80));
  }
});

test("paddings", () => {
  for (const each of read("paddings").cases) {
    const content = each.length - e2ee.PLAINTEXT_HEAD_BYTES;
    assert.equal(e2ee.paddedLength(e2ee.Kind.message, content), each.padded);
    assert.equal(e2ee.paddedLength(e2ee.Kind.delta, content), each.padded_delta);
  }
});

test("files", async () => {
  const { cases, refused, message, messages_refused } = read("files");
  for (const each of cases) {
    const pattern = new TextEncoder().encode(each.pattern);
    const content = Uint8Array.from(
      { length: each.length },
      (_, i) => pattern[i % pattern.length]!,
    );
    const sealed = await sealFileWithSalt(content, bytes(each.key), bytes(each.salt));
    assert.equal(sealed.sha256, each.sha256);
    assert.equal(sealed.ciphertext.length, each.file_length);
    if (each.file) assert.equal(hex(sealed.ciphertext), each.file);
    assert.deepEqual(await e2ee.openFile(sealed.ciphertext, sealed.key, each.sha256), content);
    assert.equal(
      await reasonOf(() => e2ee.openFile(sealed.ciphertext, sealed.key, "0".repeat(64))),
      "bad_ciphertext",
    );
  }
  const key = new Uint8Array(32).fill(4);
  for (const each of refused) {
    const file = each.file === undefined ? await cutFile(each, key) : bytes(each.file);
    const reason = await reasonOf(() => e2ee.openFile(file, key, each.sha256));
    assert.equal(reason, each.reason, each.name);
  }
  const http = new Http({
    url: "http://node.invalid",
    fetch: () => Promise.reject(new Closed("called")),
    hooks: new HookCaller({}, CONSOLE),
    token: () => null,
  });
  for (const each of messages_refused) {
    const reason = await reasonOf(() => downloadFile(http, each));
    assert.equal(reason, "malformed", JSON.stringify(each));
  }
  await assert.rejects(downloadFile(http, message), Closed);
});

/** A file of the letter z, cut, and with another end. */
async function cutFile({ of_length, cut, end }: Vector, key: e2ee.Bytes): Promise<e2ee.Bytes> {
  const content = new Uint8Array(of_length).fill("z".charCodeAt(0));
  const { ciphertext } = await sealFileWithSalt(content, key, new Uint8Array(16).fill(5));
  return concat(ciphertext.subarray(0, cut), bytes(end));
}

test("backups", async () => {
  const vector = read("backups");
  const salt = bytes(vector.salt);
  const costs = { m: vector.m, t: vector.t, p: vector.p };
  const kek = await e2ee.backupKey(vector.password_decomposed, salt, costs);
  assert.equal(hex(kek), vector.kek);
  const place = {
    userId: vector.user,
    deviceId: vector.device_id,
    keys: halves(vector.device),
    costs,
  };
  const own = { keyId: bytes(vector.device.key_id) };
  const exchange = [
    { ...own, secret: bytes(vector.device.x25519_private) },
    ...vector.earlier.map((each: Vector) => ({
      keyId: bytes(each.key_id),
      secret: bytes(each.x25519_private),
    })),
  ];
  const signing = [{ ...own, secret: bytes(vector.device.ed25519_seed) }];
  const a = await sealBackupWithNonce("a", kek, place, exchange, bytes(vector.nonce_a));
  const b = await sealBackupWithNonce("b", kek, place, signing, bytes(vector.nonce_b));
  assert.equal(hex(e2ee.fromBase64(a)), vector.backup_a);
  assert.equal(hex(e2ee.fromBase64(b)), vector.backup_b);
  assert.deepEqual(await e2ee.openBackup("a", kek, place, a), exchange);
  assert.deepEqual(await e2ee.openBackup("b", kek, place, b), signing);
  const elsewhere = { ...place, deviceId: "other" };
  assert.equal(await reasonOf(() => e2ee.openBackup("a", kek, elsewhere, a)), "wrong_key");
  assert.equal(await reasonOf(() => e2ee.openBackup("b", kek, place, a)), "wrong_key");
  for (const each of vector.refused) {
    const reason = await reasonOf(() =>
      e2ee.restoreBackup(each.password, each.user, {
        backup_a: e2ee.base64(bytes(each.backup_a)),
        backup_b: e2ee.base64(bytes(each.backup_b)),
        argon2_salt: e2ee.base64(salt),
        argon2_params: costs,
        public_key: e2ee.base64(bytes(each.device.public_key)),
        signing_public_key: e2ee.base64(bytes(each.device.signing_public_key)),
        device_id: each.device_id,
      }),
    );
    assert.equal(reason, each.reason, each.name);
  }
  // The highest take a gigabyte, so they are only checked.
  assert(vector.costs_accepted.every(isWithinBounds));
  for (const refused of vector.costs_refused) {
    assert(!isWithinBounds(refused));
    await assert.rejects(e2ee.backupKey("x", salt, refused), e2ee.UsageError);
  }
});

test("safety numbers", async () => {
  for (const each of read("safety").cases) {
    const sides = each.sides.map((side: Vector) => ({
      principal: principal(side.owner),
      keys: side.keys.map(halves),
    }));
    const [one, other] = sides;
    for (const [i, side] of sides.entries()) {
      assert.equal(await e2ee.safetyDigits(side), each.sides[i].half);
    }
    assert.equal(await e2ee.safetyNumber(one, other), each.number);
    assert.equal(await e2ee.safetyNumber(other, one), each.number);
  }
});

test("search tokens", async () => {
  const { place, cases } = read("search");
  const [secret, conversation] = [bytes(place.secret), bytes(place.conversation)];
  const key = await e2ee.EpochKey.ofEpoch(secret, conversation, place.epoch);
  const next = await e2ee.EpochKey.ofEpoch(secret, conversation, place.epoch + 1);
  for (const { text, words, tokens, next_tokens } of cases) {
    assert.deepEqual(e2ee.searchWords(text), words);
    assert.deepEqual(await e2ee.searchTokens(key, words), tokens);
    assert.deepEqual(await e2ee.searchTokens(next, words), next_tokens);
  }
  const lane = await e2ee.EpochKey.ofLane(secret, conversation, place.epoch, key.sid, conversation);
  assert.equal(await e2ee.searchTokens(lane, ["word"]), null);
});

test("reply ids", async () => {
  for (const each of read("reply_ids").cases) {
    const { event, conversation, sender, client_message_id: id } = each.source;
    const origin = event
      ? await e2ee.eventOrigin(event)
      : await e2ee.messageOrigin(conversation, principal(sender), id);
    assert.equal(hex(origin.hash), each.origin);
    assert.equal(e2ee.originKey(origin), each.key);
    assert.equal(await e2ee.replyId(each.agent, origin, each.name), each.ulid);
    assert.equal(hex(e2ee.idBytes(each.ulid)), each.id);
  }
});

test("leaves of the key log", async () => {
  for (const each of read("key_log").cases) {
    const keys = each.keys.map((key: Vector) => ({
      ...halves(key),
      deviceId: key.device_id ?? "",
      schemes: key.schemes,
    }));
    const hash = await e2ee.keysHash(bytes(each.before), keys);
    const label = await e2ee.logLabel(principal(each.owner));
    const leaf = e2ee.logLeaf(label, each.list_version, hash);
    assert.equal(hex(hash), each.keys_hash);
    assert.equal(hex(label), each.label);
    assert.equal(hex(leaf), each.leaf);
    assert.equal(hex(await e2ee.leafHash(leaf)), each.leaf_hash);
  }
});

/** The secrets of the envelopes' vectors: the epoch's, and the lane's. */
async function secretsOf(vectors: Vector): Promise<{ all: e2ee.EpochKey; lane: e2ee.EpochKey }> {
  const conversation = bytes(vectors.conversation);
  const all = await e2ee.EpochKey.ofEpoch(bytes(vectors.secret), conversation, vectors.epoch);
  assert.equal(hex(all.sid), vectors.sid);
  const agent = bytes(vectors.lane_agent);
  const secret = bytes(vectors.lane_secret);
  const lane = await e2ee.EpochKey.ofLane(secret, conversation, vectors.epoch, all.sid, agent);
  return { all, lane };
}

function opening(
  envelope: e2ee.Bytes,
  each: Vector,
  vectors: Vector,
  secret: e2ee.EpochKey,
  keys: e2ee.PublicKeys | null,
): Promise<e2ee.Opened> {
  const isHeld = (epoch: number, sid: Uint8Array): boolean =>
    epoch === secret.epoch && e2ee.equal(sid, secret.sid);
  return e2ee.open({
    envelope,
    place: placeOf(each.place),
    conversation: bytes(vectors.conversation),
    sender: principal(each.sender),
    secret: (epoch, sid) => (isHeld(epoch, sid) ? secret : undefined),
    senderKeys: async (keyId) =>
      keys && e2ee.equal(await e2ee.keyId(keys), keyId) ? keys : undefined,
  });
}

test("envelopes are sealed and opened byte by byte", async () => {
  const vectors = read("envelopes");
  const { all, lane } = await secretsOf(vectors);
  for (const each of vectors.cases) {
    const keys = await pair(each);
    const input = {
      secret: each.lane_agent ? lane : all,
      place: placeOf(each.place),
      sender: principal(each.sender),
      keys,
      content: new TextEncoder().encode(each.content),
      addressed: each.readers.map(bytes),
      time: each.time,
      view: {
        listVersion: Number.parseInt(each.view.slice(0, 8), 16),
        keysHash: bytes(each.view.slice(8)),
      },
    };
    const envelope = await sealWithSalt(input, bytes(each.salt));
    assert.equal(hex(envelope), each.envelope, each.name);
    assert.equal(hex(e2ee.contextBytes(placeOf(each.place))), each.ctx);
    assert.equal(await e2ee.envelopeHash(envelope), e2ee.base64(bytes(each.fingerprint)));
    const readers =
      each.readers.includes(vectors.lane_agent) || each.lane_agent ? [all, lane] : [all];
    for (const secret of readers) {
      const opened = await opening(envelope, each, vectors, secret, keys);
      assert.equal(new TextDecoder().decode(opened.contentBytes), each.content);
      assert.equal(opened.time, each.time);
    }
  }
  for (const each of vectors.digests) {
    const digest = await e2ee.requestDigest(
      bytes(each.conversation),
      { type: "agent", id: each.agent },
      placeOf(each.place) as e2ee.RequestPlace,
      new TextEncoder().encode(each.content),
    );
    assert.equal(hex(digest), each.digest);
  }
});

test("envelopes that are refused, each with its reason", async () => {
  const vectors = read("envelopes");
  const { all, lane } = await secretsOf(vectors);
  for (const each of vectors.refused) {
    const keys = each.public_key ? halves(each) : null;
    const secret = each.by_slot ? lane : all;
    const reason = await reasonOf(() => opening(bytes(each.envelope), each, vectors, secret, keys));
    assert.equal(reason, each.reason, each.name);
  }
});

test("the largest content, and a larger one", async () => {
  const vectors = read("envelopes");
  const { all } = await secretsOf(vectors);
  for (const each of vectors.large) {
    const plaintext = new Uint8Array(each.padded);
    const front = bytes(each.front);
    plaintext.set(front);
    plaintext.fill(" ".charCodeAt(0), front.length, front.length + each.length);
    plaintext.set(new TextEncoder().encode("{}"), front.length);
    const sealed = await gcmSeal(bytes(each.key), bytes(each.nonce), plaintext, bytes(each.aad));
    const envelope = concat(bytes(each.header), sealed);
    const reason = await reasonOf(() => opening(envelope, each, vectors, all, halves(each)));
    assert.equal(reason, each.reason ?? "opened", String(each.length));
  }
});

/** The changes of a vector: at each position some other values, with the reason of each. */
function* changes(vector: Vector): Generator<{ changed: e2ee.Bytes; reason: string; at: number }> {
  const whole = bytes(vector.bytes);
  for (const { from, to, reason, except } of vector.changes) {
    for (let at = from; at < to; at++) {
      const others = new Set([whole[at]! ^ 0x01, whole[at]! ^ 0x80, 0x00, 0xff]);
      for (const value of Object.keys(except)) others.add(Number.parseInt(value, 16));
      others.delete(whole[at]!);
      for (const value of others) {
        const changed = whole.slice();
        changed[at] = value;
        yield { changed, reason: except[hex(Uint8Array.of(value))] ?? reason, at };
      }
    }
  }
}

for (const name of ["envelope", "envelope_by_slot"]) {
  test(`every changed byte of an ${name} is refused, with its reason`, () => refusesChanges(name));
}

async function refusesChanges(name: string): Promise<void> {
  const vector = read("refuse")[name];
  const conversation = bytes(vector.conversation);
  const { epoch } = vector;
  const secret =
    name === "envelope"
      ? await e2ee.EpochKey.ofEpoch(bytes(vector.secret), conversation, epoch)
      : await e2ee.EpochKey.ofLane(
          bytes(vector.lane_secret),
          conversation,
          epoch,
          bytes(vector.sid),
          bytes(vector.lane_agent),
        );
  const keys = halves(vector);
  const whole = await opening(bytes(vector.bytes), vector, vector, secret, keys);
  assert.equal(whole.header.slots.length, 1);
  for (const { changed, reason, at } of changes(vector)) {
    const found = await reasonOf(() => opening(changed, vector, vector, secret, keys));
    assert.equal(found, reason, `byte ${at} is ${changed[at]}`);
  }
}

test("every changed byte of a wrap is refused, with its reason", async () => {
  const { wrap: vector } = read("refuse");
  const keys = await pair(vector);
  const conversation = bytes(vector.conversation);
  const recipient = principal(vector.recipient);
  const opened = (wrap: e2ee.Bytes): Promise<unknown> =>
    e2ee.openWrap(e2ee.base64(wrap), conversation, vector.epoch, recipient, keys);
  await opened(bytes(vector.bytes));
  for (const { changed, reason, at } of changes(vector)) {
    assert.equal(await reasonOf(() => opened(changed)), reason, `byte ${at} is ${changed[at]}`);
  }
});

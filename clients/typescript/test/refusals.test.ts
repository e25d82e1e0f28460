// Things that are neither sealed nor opened, each with its reason. The vectors hold more of them.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as e2ee from "@blindpipe/client/e2ee";
import { gcmSeal, hkdf } from "#dist/e2ee/primitives.js";
import { label, random } from "#dist/e2ee/bytes.js";
import { reasonOf } from "./vector-support.js";

const conversation = random(16);
const sender = { type: "user", id: e2ee.newUlid() } as const;
const place = { kind: e2ee.Kind.message, clientMessageId: e2ee.newUlid() } as const;

async function sealing(): Promise<{
  seal: (content: e2ee.SealInput["content"], addressed?: e2ee.Bytes[]) => Promise<e2ee.Bytes>;
  open: (envelope: e2ee.Bytes, secret?: e2ee.EpochKey) => Promise<e2ee.Opened>;
  lane: (agent: e2ee.Bytes) => Promise<e2ee.EpochKey>;
}> {
  const keys = await e2ee.importKeys(e2ee.generatePrivateKeys());
  const raw = random(32);
  const all = await e2ee.EpochKey.ofEpoch(raw, conversation, 1);
  return {
    seal: (content, addressed) =>
      e2ee.seal({ secret: all, place, sender, keys, content, addressed, time: Date.now() }),
    open: (envelope, secret = all) =>
      e2ee.open({
        envelope,
        place,
        conversation,
        sender,
        secret: () => secret,
        senderKeys: () => keys,
      }),
    lane: async (agent) => {
      const secret = await e2ee.agentLaneSecret(raw, conversation, 1, agent);
      return e2ee.EpochKey.ofLane(secret, conversation, 1, all.sid, agent);
    },
  };
}

const utf8 = (text: string): e2ee.Bytes => new TextEncoder().encode(text);
const tooLarge = utf8(JSON.stringify({ text: "x".repeat(720 * 1024) }));

test("a slot that was altered is bad ciphertext", async () => {
  const { seal, open, lane } = await sealing();
  const agent = random(16);
  const envelope = await seal({ text: "for you" }, [agent]);
  const own = await lane(agent);
  assert.deepEqual((await open(envelope, own)).content, { text: "for you" });
  envelope[88 + 16]! ^= 1;
  assert.equal(await reasonOf(() => open(envelope, own)), "bad_ciphertext");
});

test("content above the maximum is malformed", async () => {
  const { seal, open } = await sealing();
  assert.equal(await reasonOf(() => e2ee.decodeContent(tooLarge)), "malformed");
  const largest = utf8(JSON.stringify({ text: "x".repeat(720 * 1024 - 11) }));
  const envelope = await seal(largest);
  assert.deepEqual((await open(envelope)).contentBytes, largest);
  const longer = new Uint8Array(envelope.length + 1);
  longer.set(envelope);
  assert.equal(await reasonOf(() => open(longer)), "malformed");
});

test("bytes are sealed by the rules of contents", async () => {
  const { seal } = await sealing();
  await seal(utf8('{"n":1}'));
  const refused = [
    utf8('{"n":9007199254740993}'),
    utf8("[1]"),
    utf8('{"text":"\\ud800"}'),
    utf8("\ufeff{}"),
    Uint8Array.of(0x7b, 0xff, 0x7d),
    tooLarge,
  ];
  for (const content of refused) await assert.rejects(seal(content), e2ee.UsageError);
});

/** A file of these chunks, and its hash. */
async function fileOf(
  key: e2ee.Bytes,
  chunks: readonly Uint8Array[],
  magic = "BPF1",
): Promise<{ file: e2ee.Bytes; sha256: string }> {
  const salt = random(16);
  const chunkKey = await hkdf(key, salt, label("file"), 32);
  const sealed = chunks.map((chunk, i) => {
    const nonce = new Uint8Array(12);
    nonce[10] = i;
    nonce[11] = Number(i === chunks.length - 1);
    return gcmSeal(chunkKey, nonce, chunk);
  });
  const file = Buffer.concat([utf8(magic), salt, ...(await Promise.all(sealed))]);
  const hash = await crypto.subtle.digest("SHA-256", file);
  return { file: new Uint8Array(file), sha256: e2ee.hex(new Uint8Array(hash)) };
}

test("files of another version, with an empty chunk, or without a hash", async () => {
  const key = random(32);
  const full = new Uint8Array(65_536);
  const reason = ({ file, sha256 }: { file: e2ee.Bytes; sha256: string }): Promise<string> =>
    reasonOf(() => e2ee.openFile(file, key, sha256));
  const good = await fileOf(key, [full, Uint8Array.of(1)]);
  assert.equal(await reason(good), "opened");
  assert.equal(await reason(await fileOf(key, [full], "XPF1")), "unknown_version");
  assert.equal(await reason(await fileOf(key, [full], "BPF2")), "unknown_version");
  assert.equal(await reason(await fileOf(key, [full, new Uint8Array(0)])), "malformed");
  assert.equal(await reason({ ...good, file: good.file.slice(0, 19) }), "bad_ciphertext");
  assert.equal(await reason({ ...good, sha256: "0".repeat(64) }), "bad_ciphertext");
  for (const sha256 of ["", "no hash", undefined as unknown as string]) {
    assert.equal(await reason({ ...good, sha256 }), "malformed");
  }
});

test("a backup that is cut, of another version, or of no base64 is a wrong key", async () => {
  const user = e2ee.newUlid();
  const costs = { m: 19_456, t: 2, p: 1 };
  const secret = e2ee.generatePrivateKeys();
  const fields = await e2ee.makeBackup("a password", user, "laptop", secret, [], costs);
  const restored = (changes: object): Promise<string> =>
    reasonOf(() => e2ee.restoreBackup("a password", user, { ...fields, ...changes }));
  assert.equal(await restored({}), "opened");
  const whole = e2ee.fromBase64(fields.backup_a);
  const other = whole.slice();
  other[0] = 2;
  const changes: object[] = [0, 1, 12, 28, whole.length - 1].map((length) => ({
    backup_a: e2ee.base64(whole.subarray(0, length)),
  }));
  changes.push(
    { backup_a: e2ee.base64(other) },
    { backup_b: "no base64" },
    { public_key: "no base64" },
    { argon2_salt: "no base64" },
    { device_id: "phone" },
  );
  for (const change of changes) assert.equal(await restored(change), "wrong_key");
});

test("nobody outside names a salt or a nonce", async () => {
  const names = Object.keys(e2ee);
  assert.deepEqual(names.filter((name) => /salt|nonce/i.test(name)), []);
  const content = utf8("{}");
  const keys = [random(32), random(16)] as const;
  const seal = e2ee.sealFile as (...parameters: unknown[]) => Promise<e2ee.SealedFile>;
  const [one, other] = [await seal(content, ...keys), await seal(content, ...keys)];
  assert.notDeepEqual(one.key, other.key);
  assert.notDeepEqual(one.ciphertext, other.ciphertext);
  const secret = await e2ee.EpochKey.ofEpoch(random(32), conversation, 1);
  const sender_keys = await e2ee.importKeys(e2ee.generatePrivateKeys());
  const input = { secret, place, sender, keys: sender_keys, content, time: 0, salt: random(16) };
  assert.notDeepEqual(await e2ee.seal(input), await e2ee.seal(input));
});

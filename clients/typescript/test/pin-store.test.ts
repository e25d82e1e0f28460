// A store is a log: each change is added, nothing that was kept is lost, and it stays small.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, stat, symlink, unlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { type EpochMarks, Trust, generatePrivateKeys, importKeys, ulid } from "@blindpipe/client/e2ee";
import type { Principal } from "@blindpipe/client/e2ee";
import { filePins } from "#dist/stores/pin-store.js";
import { MAX_ROOMS, Session } from "#dist/core/session.js";

const ME: Principal = { type: "agent", id: idOf(0) };

function idOf(number: number): string {
  const bytes = new Uint8Array(16);
  new DataView(bytes.buffer).setUint32(12, number);
  return ulid(bytes);
}

async function newPath(): Promise<string> {
  return join(await mkdtemp(join(tmpdir(), "pins-")), "pins");
}

const trustOf = (marks: Record<string, EpochMarks>) => ({ pins: { principals: {} }, marks });

async function marksOf(path: string): Promise<Record<string, number>> {
  const { marks } = (await filePins(path).load())!;
  const names = [...(marks as { names(): Iterable<string> }).names()];
  const get = (name: string) => (marks as unknown as { get(name: string): EpochMarks }).get(name);
  return Object.fromEntries(names.map((name) => [name, get(name).epoch]));
}

const epoch = (number: number): EpochMarks => ({ epoch: number, time: 1 });

test("the last entry of a name counts", async () => {
  const path = await newPath();
  const store = filePins(path);
  assert.equal(await store.load(), null);
  await store.save(trustOf({ a: epoch(1), b: epoch(1) }));
  await store.save(trustOf({ a: epoch(2) }));
  assert.equal((await stat(path)).mode & 0o777, 0o600);
  assert.deepEqual(await marksOf(path), { a: 2, b: 1 });
});

test("a torn line is cut, and a damaged one is left out", async () => {
  const path = await newPath();
  await filePins(path).save(trustOf({ a: epoch(1), b: epoch(1), c: epoch(1) }));
  const whole = await readFile(path, "utf8");
  await writeFile(path, whole.replace("marks b", "marks B") + whole.slice(0, 20));
  const store = filePins(path);
  await store.load();
  // The next line does not stand behind half of another.
  await store.save(trustOf({ d: epoch(1) }));
  assert.deepEqual(await marksOf(path), { a: 1, c: 1, d: 1 });
});

test("nothing is written through a link", async () => {
  const path = await newPath();
  const other = await newPath();
  await writeFile(other, "somebody else's");
  await symlink(other, path);
  await assert.rejects(filePins(path).save(trustOf({ a: epoch(1) })));
  await unlink(path);
  await symlink(other, `${path}.${process.pid}.tmp`);
  await writeFile(path, JSON.stringify(trustOf({ a: epoch(1) })));
  // The document of an earlier version is written anew beside it.
  await filePins(path).load();
  assert.deepEqual(await marksOf(path), { a: 1 });
  assert.equal((await stat(path)).mode & 0o777, 0o600);
  assert.equal(await readFile(other, "utf8"), "somebody else's");
});

test("the document of an earlier version is converted", async () => {
  const path = await newPath();
  await writeFile(path, JSON.stringify(trustOf({ a: epoch(1) })));
  const store = filePins(path);
  await store.load();
  await store.save(trustOf({ b: epoch(2) }));
  assert.deepEqual(await marksOf(path), { a: 1, b: 2 });
});

test("a log is written anew before it is large", async () => {
  const path = await newPath();
  const store = filePins(path, 4096);
  for (let number = 0; number < 500; number++) {
    await store.save(trustOf({ a: epoch(number), [`b${number % 10}`]: epoch(number) }));
    assert((await stat(path)).size < 8192);
  }
  const marks = await marksOf(path);
  assert.deepEqual([Object.keys(marks).length, marks["a"]], [11, 499]);
});

const WRITER = `
  const { filePins } = await import(process.argv[1]);
  const store = filePins(process.argv[2], 65536);
  await store.load();
  for (let n = Number(process.argv[3]); ; n++) {
    await store.save({ pins: { principals: {} }, marks: { ["m" + (n % 100)]: { epoch: n, time: 7 } } });
    console.log(n);
  }
`;

test("a process that is killed loses nothing that was kept", async () => {
  const path = await newPath();
  const module = import.meta.resolve("#dist/stores/pin-store.js");
  let last = 0;
  for (let round = 0; round < 4; round++) {
    const writer = ["--input-type=module", "-e", WRITER, module, path, String(last + 1)];
    const child = spawn(process.execPath, writer, { stdio: ["ignore", "pipe", "inherit"] });
    const exit = once(child, "exit");
    for await (const line of createInterface({ input: child.stdout! })) {
      last = Number(line);
      if (last % 200 === 199) child.kill("SIGKILL");
    }
    await exit;
    const kept = await marksOf(path);
    for (let n = Math.max(1, last - 99); n <= last; n++) assert(kept[`m${n % 100}`]! >= n);
  }
});

test("pins that are not used are texts, and stay as they were", async () => {
  const trust = new Trust(ME);
  const keys = await importKeys(generatePrivateKeys());
  const shown = { ...keys, deviceId: "phone", schemes: ["bp1"] };
  const person = (number: number): Principal => ({ type: "user", id: idOf(number) });
  for (let number = 1; number < 3000; number++) {
    await trust.directory(person(number), [shown], 1);
    if (number === 1) trust.verify(person(1), [...trust.keysOf(person(1))][0]!.keyId, 1);
  }
  const pin = trust.keysOf(person(1))[0]!;
  assert.deepEqual([pin.standing, pin.fromStore], ["verified", false]);
  const { names, pins } = trust.takeChanged();
  assert.deepEqual([names.size, Object.keys(pins.principals).length], [2999, 2999]);
  await trust.directory(person(1), [shown], 1);
  assert.equal(trust.takeChanged().names.size, 0, "nothing is new");
  trust.confirm(person(1), pin.keyId, 1);
  assert.equal(trust.takeChanged().names.size, 1);
  const again = new Trust(ME, "tofu", [], pins);
  assert.deepEqual(again.store(), pins);
  assert.equal(again.keysOf(person(1))[0]!.fromStore, true);
});

test("rooms are let go, and come back as they were", () => {
  const session = new Session({
    http: null as never,
    self: ME,
    signer: null,
    opening: [],
    deviceId: null,
    pins: new Trust(ME),
    marks: new Map(),
    allowsClear: true,
    onNotice: () => {},
  });
  const sender: Principal = { type: "user", id: idOf(7) };
  const ids = Array.from({ length: 3 * MAX_ROOMS }, (_, number) => idOf(number + 1));
  const [mine, other] = [idOf(1), idOf(2)];
  session.resumeHandled(
    ids.map((conversationId) => ({ at: 1, conversationId, sender, clientMessageId: mine })),
  );
  const payload = { type: "encrypted" };
  for (const conversation_id of ids) session.sawEnvelope({ conversation_id, payload } as never);
  for (const id of ids) assert(session.isRemembered(id, sender, mine));
  assert(!session.isRemembered(ids[0]!, sender, other));
  const { names, marks } = session.takeChanged();
  assert.deepEqual([names.size, marks[ids[0]!]?.encrypted], [ids.length, true]);
  assert.equal(session.takeChanged().names.size, 0);
});

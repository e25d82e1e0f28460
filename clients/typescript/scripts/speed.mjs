// How fast this client is: `npm run speed`, or `npm run speed -- --backlog 10000`.
//
// Without options: envelopes and wraps that are sealed and opened a second. `--backlog` starts a
// cluster of its own, lets twenty people write, and counts the events that an agent in a process of
// its own reads, opens, handles and acknowledges a second. BLINDPIPE_SERVER names the server's
// program. `--conversations 100000` measures the store of an agent that has so many: its start, a
// change, memory.
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const PEOPLE = 20;
const ROUND_MS = 1_000;
const LIMITED = [
  "auth_register_ip",
  "conversation_open",
  "default_ip",
  "default_user",
  "keys_lookup",
  "user_message_send",
  "agent_tier_1",
];
const here = dirname(dirname(fileURLToPath(import.meta.url)));
const root = dirname(dirname(here));
const text = (number) => `message ${number} ${"x".repeat(200)}`;

async function rate(what, run) {
  const before = process.cpuUsage();
  const start = performance.now();
  let count = 0;
  for (; performance.now() - start < ROUND_MS; count++) await run();
  const seconds = (performance.now() - start) / 1000;
  const { user, system } = process.cpuUsage(before);
  const busy = Math.round((user + system) / count);
  console.log(`${what}: ${Math.round(count / seconds)} a second, ${busy} µs of processor each`);
}

async function crypto() {
  const e2ee = await import("@blindpipe/client/e2ee");
  const conversation = e2ee.idBytes(e2ee.newUlid());
  const [keys, recipient] = await Promise.all(
    [1, 2].map(() => e2ee.importKeys(e2ee.generatePrivateKeys())),
  );
  const raw = e2ee.newSecret();
  const secret = await e2ee.EpochKey.ofEpoch(raw, conversation, 1);
  const sender = { type: "user", id: e2ee.newUlid() };
  const place = { kind: e2ee.Kind.message, clientMessageId: e2ee.newUlid() };
  const content = { type: "text", text: "x".repeat(200) };
  const input = { secret, place, sender, keys, content, time: Date.now() };
  const envelope = await e2ee.seal(input);
  const given = { secret: () => secret, senderKeys: () => keys };
  const wrap = {
    kind: 1,
    secret: raw,
    sid: secret.sid,
    conversation,
    epoch: 1,
    recipient: sender,
    recipientKeys: recipient,
    rotator: sender,
    rotatorKeys: keys,
    madeAt: Date.now(),
  };
  const wrapped = await e2ee.sealWrap(wrap);
  await rate("envelopes sealed", () => e2ee.seal(input));
  await rate("envelopes opened", () =>
    e2ee.open({ envelope, place, conversation, sender, ...given }),
  );
  await rate("wraps sealed", () => e2ee.sealWrap(wrap));
  await rate("wraps opened", () => e2ee.openWrap(wrapped, conversation, 1, sender, recipient));
}

async function fill(person, agentId, count) {
  const conversation = await person.client.openAgent(agentId);
  for (let number = 0; number < count; number++) await conversation.send(text(number));
}

/** In a process of its own, whose memory holds nothing else. */
async function handle(options, count) {
  const { Agent } = await import("@blindpipe/client/agent");
  const agent = new Agent(options);
  let handled = 0;
  let first = 0;
  let peak = 0;
  agent.on("message", (ctx) => {
    first ||= performance.now();
    if (!ctx.encrypted || !ctx.text.startsWith("message ")) throw new Error("it did not open");
    if (handled % 1000 === 0) peak = Math.max(peak, process.memoryUsage.rss());
    if (++handled === count) agent.stop();
  });
  await agent.check();
  const before = process.memoryUsage.rss();
  const start = performance.now();
  const busy = process.cpuUsage();
  await agent.run();
  const { user, system } = process.cpuUsage(busy);
  const seconds = (performance.now() - start) / 1000;
  console.log(
    `${handled} events of a backlog in ${seconds.toFixed(1)} s: ` +
      `${Math.round(handled / seconds)} a second, ` +
      `${Math.round((user + system) / handled)} µs of processor each, ` +
      `at most ${Math.round(peak / 2 ** 20)} MB, ` +
      `${Math.round((peak - before) / 2 ** 20)} MB more than at the start`,
  );
}

async function backlog(count) {
  const { devCluster } = await import("@blindpipe/client/testing");
  const cluster = await devCluster({ dir: process.env.BLINDPIPE_DEV });
  const people = [];
  for (let i = 0; i < PEOPLE; i++) people.push(await cluster.user(`person${i}`));
  const options = await cluster.agent("busy", people[0].client);
  const { Agent } = await import("@blindpipe/client/agent");
  await new Agent(options).check();
  const start = performance.now();
  await Promise.all(people.map((person) => fill(person, options.agentId, count / PEOPLE)));
  console.log(
    `${count} messages were sent in ${((performance.now() - start) / 1000).toFixed(1)} s`,
  );
  const self = [
    ...process.execArgv,
    ...(process.env.SPEED_NODE_OPTIONS ?? "").split(" ").filter(Boolean),
  ];
  await run(
    process.execPath,
    [...self, fileURLToPath(import.meta.url), "--handle", String(count)],
    {
      SPEED_AGENT: JSON.stringify(options),
    },
  );
}

function run(command, parameters, environment) {
  const options = { stdio: "inherit", env: { ...process.env, ...environment } };
  return new Promise((resolve) => spawn(command, parameters, options).once("exit", resolve));
}

/** Runs `--backlog` again beside a cluster that trusts nobody else's limits. */
async function withCluster(count) {
  const dir = join(root, ".dev/clients-typescript-speed");
  const file = join(dir, "cluster.json");
  rmSync(dir, { recursive: true, force: true });
  const server = process.env.BLINDPIPE_SERVER ? ["--server", process.env.BLINDPIPE_SERVER] : [];
  const program = process.env.BLINDPIPE_DEVCLUSTER ?? join(root, "target/debug/devcluster");
  const parameters = [
    "--dir",
    dir,
    "--packages",
    join(root, ".dev/packages"),
    "--no-demo",
    ...server,
  ];
  const overrides = LIMITED.map((name) => `${name}=1000000/min`).join(",");
  const env = { ...process.env, LIMIT_OVERRIDES: overrides };
  const child = spawn(program, parameters, { stdio: ["ignore", "ignore", "inherit"], env });
  try {
    let ended = false;
    child.once("exit", () => (ended = true));
    while (!existsSync(file)) {
      if (ended) throw new Error("the development cluster did not start");
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    const { ca_file } = JSON.parse(readFileSync(file, "utf8"));
    const own = fileURLToPath(import.meta.url);
    await run(process.execPath, [own, "--fill", String(count)], {
      NODE_EXTRA_CA_CERTS: ca_file,
      BLINDPIPE_DEV: dir,
    });
  } finally {
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGINT");
    await ended;
  }
}

/** The store of an agent that has talked with so many people, and handled a message of each. */
async function fillStore(path, conversations) {
  const { filePins } = await import("@blindpipe/client/agent");
  const e2ee = await import("@blindpipe/client/e2ee");
  const keys = await e2ee.importKeys(e2ee.generatePrivateKeys());
  const trust = new e2ee.Trust({ type: "agent", id: idOf(e2ee, 0) });
  const [marks, handled] = [{}, []];
  for (let number = 1; number <= conversations; number++) {
    const id = idOf(e2ee, number);
    const sender = { type: "user", id };
    await trust.directory(sender, [{ ...keys, deviceId: "phone", schemes: ["bp1"] }]);
    const name = `01${e2ee.hex(e2ee.idBytes(id))}`;
    marks[id] = { epoch: 3, time: 1, members: { [name]: "all" }, encrypted: true };
    handled.push({ at: Date.now(), conversationId: id, sender, clientMessageId: id });
  }
  await filePins(path).save({ pins: trust.store(), marks });
  await filePins(path).addHandled(handled);
}

function idOf(e2ee, number) {
  const bytes = new Uint8Array(16);
  new DataView(bytes.buffer).setUint32(12, number);
  return e2ee.ulid(bytes);
}

/** A start with that store, then every conversation is used once. */
async function openStore(path) {
  const { filePins } = await import("@blindpipe/client/agent");
  const e2ee = await import("@blindpipe/client/e2ee");
  const { MAX_ROOMS, Session } = await import("#dist/core/session.js");
  const start = performance.now();
  const store = filePins(path);
  const stored = await store.load();
  const self = { type: "agent", id: idOf(e2ee, 0) };
  const pins = new e2ee.Trust(self, "tofu", [], stored.pins);
  const { marks } = stored;
  const options = { http: null, self, signer: null, opening: [], deviceId: null, pins, marks };
  const session = new Session({ ...options, allowsClear: true, onNotice: () => {} });
  session.resumeHandled(await store.loadHandled());
  console.log(`start: ${((performance.now() - start) / 1000).toFixed(2)} s`);
  const begun = performance.now();
  for (let number = 1; number <= marks.size; number++) {
    const id = idOf(e2ee, number);
    const sender = { type: "user", id };
    if (!session.isRemembered(id, sender, id) || !pins.isKnown(sender)) throw new Error("lost");
    // As between events: rooms that were let go are freed then.
    if (number % 1000 === 0) await new Promise((resolve) => setImmediate(resolve));
  }
  const each = ((performance.now() - begun) / marks.size) * 1000;
  console.log(`a use of each: ${Math.round(each)} µs, ${MAX_ROOMS} rooms stay in memory`);
  const changing = performance.now();
  for (let number = 1; number <= 100; number++) {
    pins.link({ type: "user", id: idOf(e2ee, number) }, "00".repeat(16));
    await store.save({ pins: pins.takeChanged().pins, marks: {} });
  }
  console.log(`a change is kept: ${((performance.now() - changing) / 100).toFixed(1)} ms`);
  const peak = Math.round(process.resourceUsage().maxRSS / 1024);
  console.log(`memory: ${peak} MB at most`);
}

const [mode, count] = process.argv.slice(2);
if (mode === "--backlog") await withCluster(Number(count));
else if (mode === "--fill") await backlog(Number(count));
else if (mode === "--handle") await handle(JSON.parse(process.env.SPEED_AGENT), Number(count));
else if (mode === "--open-store") await openStore(count);
else if (mode === "--conversations") {
  const folder = mkdtempSync(join(tmpdir(), "pins-"));
  const path = join(folder, "pins");
  await fillStore(path, Number(count));
  const own = fileURLToPath(import.meta.url);
  // Bounds for garbage, which V8 leaves lying otherwise.
  const bounds = ["--max-semi-space-size=2", "--max-old-space-size=140"];
  await run(process.execPath, [...bounds, own, "--open-store", path], {});
  rmSync(folder, { recursive: true });
} else await crypto();

// Runs the tests, or only those named: `npm test -- people agent`. Tests against a real cluster
// start one of their own, if its program is built. `--slow` runs the longest tests instead, which need none.
import { spawn } from "node:child_process";
import { existsSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(dirname(fileURLToPath(import.meta.url)));
const root = dirname(dirname(here));
const program = process.env.BLINDPIPE_DEVCLUSTER ?? join(root, "target/debug/devcluster");
const dir = process.env.BLINDPIPE_DEV ?? join(root, ".dev/clients-typescript");
const file = join(dir, "cluster.json");
/** Tests share an address and make many connections. Sends of people stay limited for a test. */
const LIMITS = {
  auth_register_ip: "10000/10min",
  default_ip: "100000/min",
  default_user: "100000/min",
  agent_tier_1: "100000/min",
  ws_connect: "100000/min",
  ws_connect_ip: "100000/min",
  keys_lookup: "100000/min",
  conversation_open: "10000/h",
  group_agent_instance: "1000/min",
  user_messages_list: "100000/min",
  agent_conversation_message_send: "1000/s",
};
/** Tests that need no server. */
const ALONE = new Set([
  "vectors",
  "content",
  "receipts",
  "turns",
  "refusals",
  "interop",
  "states",
  "generated",
  "dispatcher",
  "webcrypto",
  "consents",
  "webhooks",
  "addresses",
  "pin-store",
  "types",
  "reconnects",
  "browser",
]);

function run(command, parameters, environment) {
  const options = { stdio: "inherit", env: { ...process.env, ...environment } };
  return new Promise((resolve) => spawn(command, parameters, options).once("exit", resolve));
}

async function startCluster() {
  if (existsSync(file)) return null;
  // A database of an older schema would stop the start.
  rmSync(dir, { recursive: true, force: true });
  const server = process.env.BLINDPIPE_SERVER ? ["--server", process.env.BLINDPIPE_SERVER] : [];
  const overrides = Object.entries(LIMITS)
    .map((row) => row.join("="))
    .join(",");
  const packages = ["--packages", join(root, ".dev/packages")];
  const child = spawn(program, ["--dir", dir, ...packages, ...server, "--no-demo"], {
    stdio: ["ignore", "ignore", "inherit"],
    env: { ...process.env, LIMIT_OVERRIDES: overrides },
  });
  let ended = false;
  child.once("exit", () => (ended = true));
  for (let i = 0; i < 600 && !existsSync(file); i++) {
    if (ended) throw new Error("the development cluster did not start");
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  return child;
}

const all = readdirSync(join(here, "build/test"))
  .filter((name) => name.endsWith(".test.js"))
  .map((name) => name.slice(0, -".test.js".length))
  .filter((name) => process.argv.length === 2 || process.argv.includes(name));
const files = (names) => names.map((name) => join(here, "build/test", `${name}.test.js`));
const isSlow = process.argv.includes("--slow");
/** A hang is a failure. */
const timeoutMs = process.env.CRASHES || isSlow ? 900_000 : 300_000;
const options = [
  "--test",
  "--test-reporter=spec",
  "--test-concurrency=4",
  `--test-timeout=${timeoutMs}`,
];
/** It kills a node that all use. */
const LAST = "node-death";

if (isSlow) {
  const slow = readdirSync(join(here, "build/test")).filter((name) => name.endsWith(".slow.js"));
  const paths = slow.map((name) => join(here, "build/test", name));
  process.exitCode = await run(process.execPath, [...options, ...paths], {});
} else if (!existsSync(program)) {
  console.log(`
  ****************************************************************************
  *  THE TESTS OF THE TYPESCRIPT CLIENT AGAINST A CLUSTER ARE LEFT OUT:
  *  ${program} is not built.
  *  Build it with \`cargo build --workspace\` and run \`npm test\` again.
  ****************************************************************************
`);
  process.exitCode = await run(
    process.execPath,
    [...options, ...files(all.filter((name) => ALONE.has(name)))],
    {},
  );
} else {
  const child = await startCluster();
  try {
    const { ca_file } = JSON.parse(readFileSync(file, "utf8"));
    const environment = { NODE_EXTRA_CA_CERTS: ca_file, BLINDPIPE_DEV: dir };
    const others = files(all.filter((name) => name !== LAST));
    const first =
      others.length > 0 ? await run(process.execPath, [...options, ...others], environment) : 0;
    const last = all.includes(LAST)
      ? await run(process.execPath, [...options, ...files([LAST])], environment)
      : 0;
    process.exitCode = first || last;
  } finally {
    if (child) {
      const ended = new Promise((resolve) => child.once("exit", resolve));
      child.kill("SIGINT");
      await ended;
    }
  }
}

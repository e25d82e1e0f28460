// Runs the tests against a cluster of their own, which serves the build of this folder.
import { spawn } from "node:child_process";
import { existsSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = fileURLToPath(new URL("..", import.meta.url));
const ROOT = join(HERE, "../..");
const DIR = join(ROOT, ".dev/clients-web");
const PROGRAM = process.env.BLINDPIPE_DEVCLUSTER ?? join(ROOT, "target/debug/devcluster");
const START_TIMEOUT_MS = 60_000;
const TEST_TIMEOUT_MS = 180_000;
/** What the app costs: measured by itself. */
const FIGURES = "figures.mjs";
/** It kills nodes that all use. */
const LAST = "node-death.test.mjs";
const isMeasured = process.argv[2] === FIGURES;
const AGENT_LIMITS = "agent_message_send=10000/s,agent_conversation_message_send=10000/s";
/** Many pages share an address. */
const LIMITS = "default_ip=10000/min,default_user=10000/min,auth_register_ip=1000/10min,ws_connect_ip=1000/min,ws_connect=1000/min";

/** The origin of the human check. The browsers of the tests are led to a node under this name. */
const CHECK_ORIGIN = "https://check.example";
/** The site whose pages may show the widget. */
const WIDGET_ORIGINS = "https://shop.example";

/** All files, or those that the command line names a part of. */
function isWanted(name) {
  const wanted = process.argv.slice(2);
  return wanted.length === 0 || wanted.some((part) => name.includes(part));
}

function run(command, parameters, environment, stdio) {
  const child = spawn(command, parameters, { stdio, env: { ...process.env, ...environment } });
  return { child, ended: new Promise((resolve) => child.once("exit", resolve)) };
}

async function started(cluster) {
  const file = join(DIR, "cluster.json");
  for (const end = Date.now() + START_TIMEOUT_MS; !existsSync(file); ) {
    if (Date.now() > end || cluster.child.exitCode !== null) throw new Error("the cluster did not start");
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  return JSON.parse(readFileSync(file, "utf8")).ca_file;
}

/** The account of the app that the cluster's demo prints, once its agent runs. */
async function greeted(cluster) {
  let said = "";
  cluster.child.stdout.on("data", (bytes) => (said += bytes));
  for (const end = Date.now() + START_TIMEOUT_MS; ; ) {
    const [, email, password] = /sign in as (\S+) with the password (\S+),/.exec(said) ?? [];
    if (password) return { DEMO_EMAIL: email, DEMO_PASSWORD: password };
    if (Date.now() > end) throw new Error(`the demo printed no account:\n${said}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

if (existsSync(PROGRAM)) {
  rmSync(DIR, { recursive: true, force: true });
  const parameters = ["--dir", DIR, "--packages", join(ROOT, ".dev/packages"), ...(isMeasured ? ["--no-demo"] : [])];
  const limits = isMeasured ? `${LIMITS},${AGENT_LIMITS}` : LIMITS;
  const settings = { APP_DIR: join(HERE, "dist"), LIMIT_OVERRIDES: limits, CHECK_ORIGIN, WIDGET_ORIGINS };
  const cluster = run(PROGRAM, parameters, settings, ["ignore", "pipe", "inherit"]);
  const greeting = isMeasured ? {} : greeted(cluster);
  try {
    // Node reads the authority when it starts.
    const environment = { NODE_EXTRA_CA_CERTS: await started(cluster), BLINDPIPE_DEV: DIR, ...(await greeting) };
    const options = ["--test", "--test-reporter=spec", `--test-timeout=${TEST_TIMEOUT_MS}`, "--test-concurrency=3"];
    const node = async (parameters, names) => {
      const files = names.map((name) => join(HERE, "test", name));
      return files.length > 0 ? run(process.execPath, [...parameters, ...files], environment, "inherit").ended : 0;
    };
    const files = readdirSync(join(HERE, "test")).filter((name) => name.endsWith(".test.mjs"));
    const wanted = files.filter(isWanted);
    const first = await (isMeasured ? node([], [FIGURES]) : node(options, wanted.filter((name) => name !== LAST)));
    const last = await node(options, wanted.filter((name) => name === LAST));
    process.exitCode = first || last;
  } finally {
    cluster.child.kill("SIGINT");
    await cluster.ended;
  }
} else {
  const stars = "*".repeat(76);
  console.log(`\n  ${stars}\n  *  THE WEB APP WAS NOT TESTED: ${PROGRAM} is not built.\n  ${stars}\n`);
}

// docs/recipes/vercel_agent.mjs with the real AI SDK; a stand-in answers for the model.
import assert from "node:assert/strict";
import { type ChildProcess, execFile } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import type { ApprovalRequest } from "@blindpipe/client";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { answerTo, startProgram, stopExample, until } from "./support.js";

const CLIENT = fileURLToPath(new URL("../../", import.meta.url));
const RECIPES = join(CLIENT, "../../docs/recipes");
const FOLDER = join(CLIENT, "../../.dev/recipes-typescript");
const DENIED = "Tool call execution denied.";

let cluster: DevCluster;
let ada: TestUser;
let model: Server;

/** Installs the packages of the recipe once per lock file; false if they cannot be had. */
async function install(): Promise<boolean> {
  const names = ["package.json", "package-lock.json"];
  const wanted = readFileSync(join(RECIPES, names[1]!), "utf8");
  const done = join(FOLDER, "installed");
  mkdirSync(FOLDER, { recursive: true });
  copyFileSync(join(RECIPES, "vercel_agent.mjs"), join(FOLDER, "vercel_agent.mjs"));
  if (existsSync(done) && readFileSync(done, "utf8") === wanted) return true;
  for (const name of names) copyFileSync(join(RECIPES, name), join(FOLDER, name));
  const quiet = ["--no-fund", "--no-audit", "--loglevel=error"];
  const installed = promisify(execFile)("npm", ["ci", ...quiet], { cwd: FOLDER });
  if (!(await installed.then(() => true, () => false))) return false;
  const link = join(FOLDER, "node_modules/@blindpipe/client");
  mkdirSync(dirname(link), { recursive: true });
  symlinkSync(CLIENT, link);
  writeFileSync(done, wanted);
  return true;
}

interface Item {
  type?: string;
  output?: string;
}

/** A model behind OpenAI's interface: it wants a tool, and repeats what the tool told. */
function answer(input: Item[], name: string): object {
  const told = input.findLast((item) => item.type === "function_call_output")?.output;
  const text = { type: "output_text", text: told, annotations: [] };
  const said = { type: "message", id: "msg_1", role: "assistant", content: [text] };
  const call = { type: "function_call", id: "fc_1", call_id: "call_1", name: "deploy" };
  const wanted = { ...call, arguments: '{"version":"1.4"}' };
  const item = { ...(told === undefined ? wanted : said), status: "completed" };
  const usage = { input_tokens: 1, output_tokens: 1, total_tokens: 2 };
  return { id: "resp_1", created_at: 1, status: "completed", model: name, output: [item], usage };
}

async function startModel(): Promise<Server> {
  const server = createServer((request, response) => {
    const pieces: Buffer[] = [];
    request.on("data", (piece: Buffer) => pieces.push(piece));
    request.on("end", () => {
      const body = JSON.parse(Buffer.concat(pieces).toString()) as { input: Item[]; model: string };
      response.writeHead(200, { "content-type": "application/json" });
      response.end(JSON.stringify(answer(body.input, body.model)));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return server;
}

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
  model = await startModel();
});

after(async () => {
  model?.close();
  await cluster?.stop();
});

function asked(): Promise<ApprovalRequest> {
  return until(async () => {
    for await (const request of ada.client.approvals()) return request;
    return null;
  });
}

test("a tool of the Vercel AI SDK runs with a signature", async (t) => {
  if (!(await install())) return t.skip("NOT TESTED: the packages could not be installed");
  const options = await cluster.agent("worker", ada.client);
  const conversation = await ada.client.openAgent(options.agentId);
  const { port } = model.address() as AddressInfo;
  const settings = { OPENAI_BASE_URL: `http://127.0.0.1:${port}/v1`, OPENAI_API_KEY: "none" };
  const start = (): Promise<ChildProcess> =>
    startProgram(join(FOLDER, "vercel_agent.mjs"), options, ada, settings);

  let worker = await start();
  await conversation.send("1.4");
  const request = await asked();
  assert.equal(request.text, "Run deploy?");
  assert.deepEqual(request.arguments, { calls: [{ tool: "deploy", arguments: { version: "1.4" } }] });
  // Another process goes on.
  worker.kill("SIGKILL");
  worker = await start();
  const told = await answerTo(ada, () => request.approve());
  assert.equal(told.opened?.content["text"], "1.4 is live");

  await conversation.send("1.4");
  const again = await asked();
  const denied = await answerTo(ada, () => again.deny("not today"));
  assert.equal(denied.opened?.content["text"], DENIED);
  assert.equal(await stopExample(worker), 0);
});

// The official client of MCP against `bp mcp`: asks, kills the server, and reads the answers from another one.

import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function connect() {
  const transport = new StdioClientTransport({ command: process.argv[2], args: ["mcp"], env: process.env });
  const client = new Client({ name: "test", version: "1.0.0" });
  await client.connect(transport);
  await client.listTools();
  return { client, transport };
}

async function call(client, name, args) {
  const result = await client.callTool({ name, arguments: args });
  if (result.isError) throw new Error(JSON.stringify(result));
  return result.structuredContent;
}

// Kills the server, while a call waits for a person.
async function killed({ client, transport }, ticket) {
  const waiting = call(client, "check", { ticket, wait_seconds: 45 });
  await client.ping();
  process.kill(transport.pid, "SIGKILL");
  const ended = await waiting.then(() => false, () => true);
  if (!ended) throw new Error("the call outlived its server");
}

const first = await connect();
const question = await call(first.client, "ask_human", { question: "Deploy?", choices: ["yes", "no"], wait_seconds: 0 });
const approval = await call(first.client, "request_approval", {
  tool: "deploy",
  arguments: { to: "production" },
  wait_seconds: 0,
});
await killed(first, question.ticket);
console.log(question.ticket);
console.log(approval.ticket);
await lines.next();
const { client } = await connect();
const answered = await call(client, "check", { ticket: question.ticket });
const decided = await call(client, "check", { ticket: approval.ticket });
console.log(answered.answer);
console.log(JSON.stringify({ approved: decided.approved, receipt: decided.receipt }));
await client.close();
process.exit(0);

#!/usr/bin/env node
/**
 * A person and an agent on the development cluster, for a first try.
 *
 * `new` registers both and prints the settings as lines for a shell. `ask TEXT` is that person: it
 * says something to the agent and prints the answer.
 */
import { Agent } from "../agent/agent.js";
import { Client } from "../client/client.js";
import { type DevCluster, devCluster } from "./index.js";

const ANSWER_TIMEOUT_MS = 30_000;

async function create(cluster: DevCluster): Promise<void> {
  const person = await cluster.user("person");
  const options = await cluster.agent("agent", person.client);
  // A person encrypts for an agent whose key is there.
  await new Agent(options).check();
  const settings = {
    BLINDPIPE_URL: options.url,
    BLINDPIPE_AGENT_ID: options.agentId,
    BLINDPIPE_TOKEN: options.token,
    BLINDPIPE_KEY: String(options.key),
    SSL_CERT_FILE: cluster.authority,
    NODE_EXTRA_CA_CERTS: cluster.authority,
    PERSON_EMAIL: person.email,
    PERSON_PASSWORD: person.password,
    PERSON_PROTECTION_PASSWORD: person.protectionPassword,
  };
  for (const [name, value] of Object.entries(settings)) console.log(`${name}='${value}'`);
}

function setting(name: string): string {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set`);
  return value;
}

async function ask(cluster: DevCluster, text: string): Promise<void> {
  const client = await Client.login({
    url: cluster.nodes[0]!,
    email: setting("PERSON_EMAIL"),
    password: setting("PERSON_PASSWORD"),
    turnstileToken: "dev-pass",
    deviceId: "first-try",
  });
  await client.devices.restore(setting("PERSON_PROTECTION_PASSWORD"));
  const agentId = setting("BLINDPIPE_AGENT_ID");
  const conversation = await client.openAgent(agentId);
  let sent: string | null = null;
  for await (const event of client.events({ signal: AbortSignal.timeout(ANSWER_TIMEOUT_MS) })) {
    if (event.type === "caught_up" && !sent) sent = (await conversation.send(text)).message_id;
    if (event.type !== "message" || !sent || event.message.in_reply_to !== sent) continue;
    if (!event.opened?.encrypted || !event.opened.sender.authentic) break;
    console.log(
      `${String(event.opened.content["text"])}\n(encrypted, and signed by the agent's key)`,
    );
    return;
  }
  throw new Error("no answer came that opens");
}

const [command, text] = process.argv.slice(2);
if (command !== "new" && (command !== "ask" || text === undefined)) {
  console.error("usage: blindpipe-dev new | blindpipe-dev ask TEXT");
  process.exit(2);
}
const cluster = await devCluster();
try {
  await (command === "new" ? create(cluster) : ask(cluster, text!));
} finally {
  await cluster.stop();
}

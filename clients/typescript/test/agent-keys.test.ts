// A new token puts an end to an agent's key, unless the agent registers it anew.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent, type AgentOptions } from "@blindpipe/client/agent";
import { base64, generatePrivateKeys, hex, importKeys } from "@blindpipe/client/e2ee";
import { sign } from "#dist/e2ee/primitives.js";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { asAgent, until } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

async function isCurrent(options: AgentOptions): Promise<boolean> {
  const answer = await asAgent(options, "GET", `/agents/${options.agentId}/keys`);
  const { data } = (await answer.json()) as { data: { keys: { current: boolean }[] } };
  assert.equal(data.keys.length, 1);
  return data.keys[0]!.current;
}

async function regenerated(options: AgentOptions): Promise<AgentOptions> {
  const path = `/agents/${options.agentId}/token/regenerate`;
  const { http } = ada.client.account;
  const { token } = await http.data<{ token: string }>({ method: "POST", path, body: { emergency: false } });
  return { ...options, token };
}

test("an agent that starts with a new token registers its key anew", async () => {
  const options = await cluster.agent("renewed", ada.client);
  await new Agent(options).check();
  assert(await isCurrent(options));
  const renewed = await regenerated(options);
  assert.equal(await isCurrent(renewed), false);
  await new Agent(renewed).check();
  assert(await isCurrent(renewed));
});

test("a key that another one has replaced is not put back", async () => {
  const options = await cluster.agent("rotated", ada.client);
  await new Agent(options).check();
  const pair = await importKeys(generatePrivateKeys());
  const [public_key, signing_public_key] = [pair.publicKey, pair.signingPublicKey].map(base64);
  const timestamp = new Date().toISOString();
  const text = ["keys-register", options.agentId, public_key, signing_public_key, timestamp].join("|");
  const signature = base64(await sign(pair.signing, new TextEncoder().encode(text)));
  const body = { public_key, signing_public_key, timestamp, signature, schemes: ["bp1"] };
  const path = `/agents/${options.agentId}/keys`;
  assert((await asAgent(options, "POST", `${path}/register`, body)).ok);
  const said: string[] = [];
  const note = (text: string): void => void said.push(text);
  const logger = { debug: note, info: note, warn: note, error: note };
  await new Agent({ ...options, logger }).check();
  assert(said.some((text) => text.includes("has been replaced")));
  const answer = await asAgent(options, "GET", path);
  const { data } = (await answer.json()) as { data: { keys: { key_id: string; current: boolean }[] } };
  assert.deepEqual(data.keys.filter((key) => key.current).map((key) => key.key_id), [hex(pair.keyId)]);
});

test("an agent that runs looks every day", async (t) => {
  const options = await cluster.agent("lasting", ada.client);
  t.mock.timers.enable({ apis: ["setInterval"] });
  const agent = new Agent(options);
  await agent.check();
  const renewed = await regenerated(options);
  t.mock.timers.tick(23 * 3_600_000);
  await new Promise((resolve) => setTimeout(resolve, 300));
  assert.equal(await isCurrent(renewed), false);
  // The token of before is good for a week.
  t.mock.timers.tick(3_600_000);
  await until(() => isCurrent(renewed));
  agent.stop();
});

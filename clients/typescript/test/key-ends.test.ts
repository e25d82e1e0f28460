// The end of a key is taken over from each reading of the directory, and passes with the clock.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import { AgentKey, Trust, hex, isRetired } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster } from "@blindpipe/client/testing";
import { attackedPerson } from "./attacks.js";
import type { Value } from "./proxy.js";

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

const HOUR_MS = 3_600_000;

test("a replaced key ends when the directory said last, also without another reading", async () => {
  await attackedPerson(cluster, async ({ proxy, victim, user }) => {
    const options = await cluster.agent("replaced", user.client);
    await new Agent(options).check();
    const agent = { type: "agent", id: options.agentId } as const;
    const { trust, session } = user.client;
    const { keyId } = await AgentKey.parse(String(options.key)).keys();
    /** Reads the agent's list with another end of its key; the key's pin. */
    const read = async (end: number | null): Promise<NonNullable<ReturnType<Trust["find"]>>> => {
      proxy.onAnswer = ({ path }, { status, body }) => {
        if (!path.endsWith(`/agents/${options.agentId}/keys`)) return undefined;
        const valid_until = end === null ? null : new Date(end).toISOString();
        const keys = body.data.keys.map((key: Value) => ({ ...key, valid_until }));
        return { status, body: { data: { ...body.data, keys } } };
      };
      await session.directory.refresh(agent);
      return trust.find(agent, keyId)!;
    };
    const now = Date.now();
    assert.equal((await read(null)).retiredAt, null);
    const ahead = await read(now + HOUR_MS);
    assert.equal(ahead.retiredAt, now + HOUR_MS);
    const states = (pin: typeof ahead): boolean[] =>
      [now, now + HOUR_MS - 1, now + HOUR_MS].map((at) => isRetired(pin, at));
    assert.deepEqual(states(ahead), [false, false, true]);
    // A store keeps the end.
    const stored = new Trust(user.client.self, "tofu", [], trust.store()).find(agent, keyId)!;
    assert.deepEqual(states(stored), [false, false, true]);
    assert.deepEqual(victim.told("retired_key"), []);
    // The end can come earlier, and then it has passed.
    const gone = await read(now - HOUR_MS);
    assert.deepEqual([gone.retiredAt, isRetired(gone, now)], [now - HOUR_MS, true]);
    assert.deepEqual(victim.told("retired_key"), [options.agentId]);
    assert.equal(gone.keyId, hex(keyId));
  });
});

// A conversation that is not known yet is read before its events are handled. The others go on meanwhile.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { devCluster, type DevCluster } from "@blindpipe/client/testing";
import { attackedAgent } from "./attacks.js";
import { until } from "./support.js";

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

test("a conversation whose reading lasts holds up no other one", async () => {
  const [ada, bob] = await Promise.all([cluster.user("ada"), cluster.user("bob")]);
  await attackedAgent(cluster, ada, async ({ proxy, victim, options }) => {
    await ada.client.openAgent(options.agentId);
    const group = async (title: string) => {
      const made = await ada.client.openGroup([bob.client.account.userId], { title });
      await made.addAgent(options.agentId, "all");
      return made;
    };
    const [slow, other] = [await group("slow"), await group("other")];
    let release!: () => void;
    const gate = new Promise<undefined>((resolve) => (release = () => resolve(undefined)));
    let reads = 0;
    proxy.before = ({ path }) => {
      if (path !== `/conversations/${slow.id}`) return undefined;
      reads += 1;
      return gate;
    };
    await slow.send("first");
    await until(() => reads > 0);
    // An event that changes the keys of what is being read.
    await slow.rotate();
    await slow.send("second");
    for (let number = 0; number < 20; number++) await other.send(`other ${number}`);
    await until(() => victim.heard.length === 20);
    assert(victim.heard.every((text) => text.startsWith("other")));
    release();
    await until(() => victim.heard.length === 22);
    assert.deepEqual(victim.heard.slice(20), ["first", "second"]);
    assert.deepEqual(victim.faults, []);
  });
});

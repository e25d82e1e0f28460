// A conversation that is not known yet is read before its events are handled. The others go on meanwhile.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import type { ClientEvent } from "@blindpipe/client";
import { devCluster, type DevCluster } from "@blindpipe/client/testing";
import { Agent } from "@blindpipe/client/agent";
import { attackedAgent, attackedPerson, shown } from "./attacks.js";
import type { Proxy, Value } from "./proxy.js";
import { MANIFEST, SCOPE, TOOLS, grant, running, signIn, until } from "./support.js";

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

/** The number of an event in its history. */
const numberOf = (cursor: string): number => Number(cursor.split("-")[1]);

/** Holds back the answers of a directory, until it is let go. */
function frozenDirectory(proxy: Proxy, path: string): { reads: () => number; release: () => void } {
  let release!: () => void;
  let reads = 0;
  const gate = new Promise<undefined>((resolve) => (release = () => resolve(undefined)));
  proxy.before = (request) => {
    if (request.path !== path) return undefined;
    reads += 1;
    return gate;
  };
  return { reads: () => reads, release };
}

test("a directory that answers late holds up no conversation of others", async () => {
  const [ada, bob, eve] = await Promise.all(["ada", "bob", "eve"].map((name) => cluster.user(name)));
  await attackedAgent(cluster, ada!, async ({ proxy, victim, options }) => {
    const own = await ada!.client.openAgent(options.agentId);
    const group = await ada!.client.openGroup([bob!.client.userId, eve!.client.userId], { title: "group" });
    await group.addAgent(options.agentId, "all");
    await group.send("known");
    await until(() => victim.heard.length === 1);
    const acks: string[] = [];
    proxy.onClientFrame = (frame) => {
      if (frame.type === "ack") acks.push(frame.cursor);
      return frame;
    };
    let added = "";
    proxy.onFrame = (frame) => {
      if (frame.event === "key.device_added" && frame.data.user_id === bob!.client.userId)
        added = frame.cursor;
      return [frame];
    };
    const path = `/keys/users/${bob!.client.userId}/devices`;
    const { reads, release } = frozenDirectory(proxy, path);
    const phone = await signIn(bob!, cluster.nodes[0]!, "phone");
    await phone.devices.restore(bob!.protectionPassword);
    await until(() => reads() > 0 && added);
    for (let number = 0; number < 10; number++) await own.send(`own ${number}`);
    await until(() => victim.heard.length === 11);
    assert.deepEqual(victim.heard.slice(1), [...Array(10).keys()].map((number) => `own ${number}`));
    // The group reads its members' keys by itself.
    await bob!.client.conversation(group.id).send("with the new key");
    await until(() => victim.heard.includes("with the new key"));
    // The answers are there, and nothing from the event on was acknowledged.
    assert(acks.every((cursor) => numberOf(cursor) < numberOf(added)), `${added}: ${acks}`);
    release();
    await until(() => acks.some((cursor) => numberOf(cursor) > numberOf(added)));
    assert.deepEqual(victim.faults, []);
  });
});

test("a directory that answers late holds up no event of a person", async (context) => {
  const [bob, eve] = await Promise.all([cluster.user("bob"), cluster.user("eve")]);
  await attackedPerson(cluster, async ({ proxy, user }) => {
    const withBob = await bob.client.openDirect(user.client.userId);
    const withEve = await eve.client.openDirect(user.client.userId);
    const events: ClientEvent[] = [];
    const ending = new AbortController();
    const acks: string[] = [];
    proxy.onClientFrame = (frame) => {
      if (frame.type === "ack") acks.push(frame.cursor);
      return frame;
    };
    void (async () => {
      for await (const event of user.client.events({ signal: ending.signal })) events.push(event);
    })();
    context.after(() => ending.abort());
    await withBob.send("known");
    await until(() => shown(events).length === 1);
    const { reads, release } = frozenDirectory(proxy, `/keys/users/${bob.client.userId}/devices`);
    const phone = await signIn(bob, cluster.nodes[0]!, "phone");
    await phone.devices.restore(bob.protectionPassword);
    await until(() => reads() > 0);
    for (let number = 0; number < 10; number++) await withEve.send(`eve ${number}`);
    await until(() => shown(events).length === 11);
    const added = events.find(
      ({ type, event }: Value) =>
        type === "event" &&
        event.event === "key.device_added" &&
        event.data.user_id === bob.client.userId,
    );
    assert(added?.type === "event");
    const isLater = (cursor: string): boolean => numberOf(cursor) >= numberOf(added.event.cursor);
    assert(!acks.some(isLater), "what was not read is not acknowledged");
    release();
    await until(() => acks.some(isLater));
  });
});

test("neither a person's own list of keys nor the answer to an unknown tool holds up events", async (context) => {
  const bob = await cluster.user("bob");
  await attackedPerson(
    cluster,
    async ({ proxy, user }) => {
      const withBob = await bob.client.openDirect(user.client.userId);
      const made = await cluster.agent("asker", user.client, MANIFEST);
      const agent = new Agent(made).on("message", (ctx) => {
        void ctx.call({ tool: "beep", scope: SCOPE, arguments: {} }).catch(() => {});
      });
      const withAgent = await user.client.openAgent(made.agentId);
      let release!: () => void;
      const gate = new Promise<undefined>((resolve) => (release = () => resolve(undefined)));
      const frozen = [`/keys/users/${user.client.userId}/devices`, "/users/me/devices"];
      const reads = new Set<string>();
      proxy.before = ({ path, method }) => {
        const [route] = path.split("?");
        if (method !== "GET" || !frozen.includes(route!)) return undefined;
        reads.add(route!);
        return gate;
      };
      const acks: string[] = [];
      proxy.onClientFrame = (frame) => {
        if (frame.type === "ack") acks.push(frame.cursor);
        return frame;
      };
      const events: ClientEvent[] = [];
      const ending = new AbortController();
      context.after(() => ending.abort());
      void (async () => {
        for await (const event of user.client.events({ signal: ending.signal })) events.push(event);
      })();
      await running(agent, async () => {
        await grant(made, user, withAgent);
        await withAgent.send("please");
        const request = (): ClientEvent | undefined =>
          events.find(({ type }) => type === "tool_request");
        const { event } = (await until(request)) as Value;
        await until(() => reads.size === 2);
        await withBob.send("hello");
        await until(() => shown(events).includes("hello"));
        const isLater = (cursor: string): boolean => numberOf(cursor) >= numberOf(event.cursor);
        assert(!acks.some(isLater), "a request without its answer is not acknowledged");
        release();
        await until(() => acks.some(isLater));
      });
    },
    { tools: TOOLS },
  );
});

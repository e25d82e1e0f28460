// A stranger's message is handled by nobody. The end of an agent's rights ends a device's memory of them.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent, type AgentOptions } from "@blindpipe/client/agent";
import type { Conversation, ToolRequest } from "@blindpipe/client";
import { newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { attackedAgent, attackedPerson } from "./attacks.js";
import type { Proxy } from "./proxy.js";
import {
  MemoryConsents,
  MANIFEST,
  SCOPE,
  TOOLS,
  approved,
  collect,
  decideUntilAnswered,
  grant,
  running,
  until,
} from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

/** Shows somebody as no member, in every answer. */
function hide(proxy: Proxy, id: string): void {
  proxy.onAnswer = (_, { status, body }) => {
    const { members } = body.data ?? {};
    if (!Array.isArray(members) || !members[0]?.role) return undefined;
    const left = members.filter(({ principal_id }) => principal_id !== id);
    return { status, body: { ...body, data: { ...body.data, members: left } } };
  };
}

test("a message of who is no member reaches no handler", async () => {
  await attackedAgent(cluster, ada, async ({ proxy, victim, options }) => {
    hide(proxy, ada.client.userId);
    const conversation = await ada.client.openAgent(options.agentId);
    await conversation.send("as a stranger");
    await until(() => victim.faults.length > 0);
    assert.deepEqual([victim.faults, victim.heard], [["not_member"], []]);
  });
});

/** An agent that asks for its tool at each message. */
async function asking(
  user: TestUser,
  during: (agent: AgentOptions, conversation: Conversation) => Promise<void>,
): Promise<void> {
  const options = await cluster.agent("asker", user.client, MANIFEST);
  const agent = new Agent(options).on("message", async (ctx) => {
    const { status } = await ctx.call({ tool: "send_email", scope: SCOPE, arguments: {} });
    await ctx.reply(status);
  });
  await running(agent, async () => {
    const conversation = await user.client.openAgent(options.agentId);
    await grant(options, user, conversation);
    await during(options, conversation);
  });
}

test("a tool request of an agent that is no member runs nothing", async () => {
  await attackedPerson(
    cluster,
    async ({ proxy, victim, user }) => {
      await asking(user, async ({ agentId }, conversation) => {
        // It was approved, and removed before it runs.
        const said = (): Promise<unknown> => conversation.send("please");
        let asked: ToolRequest | null = null;
        await collect(user, said, async (all) => {
          const last = all.at(-1)!;
          if (last.type !== "tool_request") return false;
          asked = last.request;
          await last.request.remember();
          hide(proxy, agentId);
          user.client.session.forget(conversation.id);
          const ran = last.request.execute(() => assert.fail("it ran"));
          await assert.rejects(ran, { name: "NotApproved" });
          return true;
        });
        // The next run of the program is given the same request once more.
        for await (const event of user.client.events()) if (event.type === "caught_up") break;
        assert.deepEqual(victim.faults.slice(0, 1), ["not_member"]);
        // An agent that is stopped waits for the handlers that wait for an answer.
        proxy.onAnswer = () => undefined;
        user.client.session.forget(conversation.id);
        await asked!.deny();
      });
    },
    { tools: TOOLS },
  );
});

type End = (user: TestUser, agent: AgentOptions, conversation: Conversation) => Promise<unknown>;

async function revokeGrant({ client }: TestUser): Promise<void> {
  for await (const { grant_id } of client.grants()) await client.revokeGrant(grant_id);
}

async function revokeRelation({ client }: TestUser, { agentId }: AgentOptions): Promise<void> {
  const { http } = client.account;
  for await (const each of http.pages<{ agent_id: string; relation_id: string }>("/relations")) {
    if (each.agent_id !== agentId) continue;
    await http.data({ method: "DELETE", path: `/relations/${each.relation_id}` });
  }
}

const ends: Record<string, End> = {
  "the end of a grant": revokeGrant,
  "the end of a relation": revokeRelation,
  "the person's own word": ({ client }, { agentId }) => client.devices.withdraw(agentId),
  "the person's word of a scope": ({ client }, { agentId }) =>
    client.devices.withdraw(agentId, SCOPE),
};

for (const [name, end] of Object.entries(ends)) {
  test(`${name} ends what a device remembers`, async () => {
    const consents = new MemoryConsents();
    const user = await cluster.user("uma", { tools: TOOLS, consents });
    const left = (): number => Object.keys(consents.remembered).length;
    await asking(user, async (options, conversation) => {
      const say = (): Promise<unknown> => conversation.send("please");
      await decideUntilAnswered(user, say, async (request) => {
        await request.remember();
        await approved(request, () => "sent");
      });
      assert.equal(left(), 1);
      await user.client.devices.withdraw(options.agentId, "another:scope");
      assert.equal(left(), 1);
      const stop = new AbortController();
      const reading = (async () => {
        for await (const _ of user.client.events({ signal: stop.signal }));
      })();
      await end(user, options, conversation);
      await until(() => left() === 0);
      stop.abort();
      await reading;
    });
  });
}

test("an agent's removal ends what a device remembers there", async () => {
  const consents = new MemoryConsents();
  const left = (): number => Object.keys(consents.remembered).length;
  const during = async ({ proxy, user }: { proxy: Proxy; user: TestUser }): Promise<void> => {
    await asking(user, async ({ agentId }, conversation) => {
      await decideUntilAnswered(user, () => conversation.send("please"), async (request) => {
        await request.remember();
        await approved(request, () => "sent");
      });
      const removed = (conversation_id: string): object => ({
        type: "event",
        event: "member.removed",
        event_id: newUlid(),
        conversation_id,
        data: { conversation_id, member: { principal_type: "agent", principal_id: agentId } },
      });
      const counts: number[] = [];
      await collect(
        user,
        async () => [newUlid(), conversation.id].forEach((id) => proxy.say(removed(id))),
        (all) => {
          if (all.at(-1)!.type === "event") counts.push(left());
          return counts.length === 2;
        },
      );
      assert.deepEqual(counts, [1, 0]);
    });
  };
  await attackedPerson(cluster, during, { tools: TOOLS, consents });
});

// An active server consents in a person's name, and alters, replays and delays tool requests.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import type { AgentOptions, CallResult, Context } from "@blindpipe/client/agent";
import { Agent } from "@blindpipe/client/agent";
import type { ClientEvent } from "@blindpipe/client";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { Victim, attackedAgent, attackedPerson, changed, flipped } from "./attacks.js";
import type { Value } from "./proxy.js";
import { asAgent, collect, fromAgent, running, until } from "./support.js";

const SCOPE = "notification:send";
const MANIFEST = {
  tools: [{ name: "send_email", scope: SCOPE }],
  permission_scopes: [{ scope: SCOPE, sensitivity: "low" }],
};

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

async function grant(options: AgentOptions, user: TestUser, conversationId: string): Promise<void> {
  const path = `/agents/${options.agentId}/grants/request`;
  const asked = await asAgent(options, "POST", path, {
    conversation_id: conversationId,
    scopes: [SCOPE],
  });
  const { data } = (await asked.json()) as { data: { grant_id: string } };
  await user.client.decideGrant(data.grant_id, "approve");
}

function ask(ctx: Context): Promise<CallResult> {
  return ctx.call({ tool: "send_email", scope: SCOPE, arguments: { text: ctx.text } });
}

test("a denial that the server turns into consent is believed as none", async () => {
  const results: CallResult[] = [];
  let denial: Value = null;
  await attackedAgent(
    cluster,
    ada,
    async ({ proxy, options }) => {
      const conversation = await ada.client.open({ type: "agent", agent_id: options.agentId });
      await grant(options, ada, conversation.id);
      const lies: readonly ((outcome: Value) => Value)[] = [
        // The device's own envelope, under another status.
        (outcome) => ({ ...outcome, status: "executed", reason: null }),
        // Words of the server's own.
        (outcome) => ({
          ...outcome,
          status: "executed",
          reason: null,
          payload: { type: "result" },
        }),
        // The device's consent to another request.
        (outcome) => ({ ...outcome, status: "executed", reason: null, payload: denial.payload }),
      ];
      for (const lie of lies) {
        proxy.onFrame = (frame) => {
          if (frame.event !== "artifact_response") return [frame];
          denial ??= frame.data;
          return [{ ...frame, data: lie(frame.data) }];
        };
        proxy.onAnswer = ({ path }, { status, body }) => {
          const isState = path.endsWith("/artifact-requests") && body.data?.status === "denied";
          return isState ? { status, body: { data: lie(body.data) } } : undefined;
        };
        const before = results.length;
        await collect(
          ada,
          () => conversation.send("please"),
          async (all) => {
            const last = all.at(-1)!;
            if (last.type === "tool_request") await last.request.deny();
            return all.some(fromAgent);
          },
        );
        await until(() => results.length > before);
        assert.deepEqual(results.at(-1), {
          status: "failed",
          reason: "unproven",
          result: null,
          message: null,
        });
      }
    },
    {},
    (agent) =>
      agent.use(async (ctx) => {
        if (ctx.event.event !== "message.created") return;
        results.push(await ask(ctx));
        await ctx.reply("done");
      }),
    MANIFEST,
  );
});

type Change = (call: Value) => object;

test("a device takes no request that was altered, moved or made by the server", async () => {
  await attackedPerson(cluster, async ({ proxy, victim, user }) => {
    const options = await cluster.agent("asker", user.client, MANIFEST);
    const agent = new Agent(options).on("message", async (ctx) => {
      await Promise.race([ask(ctx), new Promise((resolve) => setTimeout(resolve, 400))]);
      await ctx.reply("asked");
    });
    const rows: readonly [Change, string][] = [
      [({ payload }) => ({ payload: flipped(payload) }), "bad_ciphertext"],
      [() => ({ tool: "delete_account" }), "bad_ciphertext"],
      [() => ({ scope: "contacts:read" }), "bad_ciphertext"],
      [() => ({ request_id: "another-request" }), "bad_ciphertext"],
      [() => ({ user_id: ada.client.account.userId }), "bad_ciphertext"],
      [() => ({ payload: { type: "tool_call", arguments: { text: "forged" } } }), "clear"],
    ];
    await running(agent, async () => {
      const conversation = await user.client.open({ type: "agent", agent_id: options.agentId });
      await grant(options, user, conversation.id);
      for (const [change, reason] of rows) {
        proxy.onFrame = (frame) => [
          frame.event === "artifact_request" ? changed(frame, change(frame.data)) : frame,
        ];
        const before = victim.faults.length;
        const events = await collect(
          user,
          () => conversation.send("please"),
          (all) => all.some(fromAgent),
        );
        assert(!events.some(({ type }) => type === "tool_request"), reason);
        assert.deepEqual(victim.faults.slice(before), [reason]);
      }
    });
  });
});

test("a request that comes again runs once, and one that is held back is stale", async () => {
  await attackedPerson(cluster, async ({ proxy, victim, user }) => {
    const options = await cluster.agent("asker", user.client, MANIFEST);
    const agent = new Agent(options).on("message", async (ctx) => {
      const { status } = await ask(ctx);
      await ctx.reply(status);
    });
    const mails: unknown[] = [];
    let held: Value = null;
    proxy.onFrame = (frame) => {
      if (frame.event !== "artifact_request") return [frame];
      held = frame;
      return [frame, frame, frame];
    };
    const run = async (all: ClientEvent[]): Promise<void> => {
      const last = all.at(-1)!;
      if (last.type === "tool_request") await last.request.execute((mail) => mails.push(mail));
    };
    await running(agent, async () => {
      const conversation = await user.client.open({ type: "agent", agent_id: options.agentId });
      await grant(options, user, conversation.id);
      await collect(
        user,
        () => conversation.send("please"),
        async (all) => {
          await run(all);
          return all.some(fromAgent);
        },
      );
      assert.deepEqual(mails, [{ text: "please" }]);
    });
    // Six minutes later the server delivers it once more.
    const now = Date.now;
    try {
      await collect(
        user,
        async () => {
          Date.now = () => now() + 6 * 60_000;
          proxy.say(held);
          proxy.say({ type: "caught_up" });
        },
        async (all) => {
          await run(all);
          return all.some(({ type }) => type === "caught_up");
        },
      );
    } finally {
      Date.now = now;
    }
    assert.deepEqual(victim.faults, ["stale"]);
    assert.equal(mails.length, 1);
  });
});

test("an answer counts for its own question, by those who were asked", async () => {
  const bob = await cluster.user("bob");
  const victim = new Victim();
  const options = { ...(await cluster.agent("quizmaster", ada.client)), hooks: victim.hooks };
  const answers: unknown[] = [];
  const agent = new Agent(options)
    .on("message", async (ctx) => {
      if (ctx.text !== "quiz") return;
      await ctx.ask("First?", { tag: "quiz", state: { number: 1 } });
      await ctx.ask("Second?", { tag: "quiz", state: { number: 2 } });
    })
    .onAnswer("quiz", async (ctx) => {
      answers.push([ctx.answer.state["number"], ctx.answer.choice ?? ctx.answer.text]);
      await ctx.reply("noted");
    });
  await ada.client.open({ type: "agent", agent_id: options.agentId });
  const member_ids = [bob.client.account.userId];
  const group = await ada.client.open({ type: "group", title: "quiz", member_ids });
  await group.addAgent(options.agentId, "all");
  await running(agent, async () => {
    const events = await collect(
      ada,
      () => group.send("quiz"),
      (all) => all.filter(fromAgent).length === 2,
    );
    const [first, second] = events.filter(fromAgent);
    const bobs = bob.client.conversation(group.id);
    // Bob was not asked. His answer names the question, and is no answer.
    const seen = await bobs.open(second!.message, false);
    await bobs.answer(seen, "Bob's");
    // An answer whose words were given to another question names that one's hash.
    const moved = { ...first!, opened: second!.opened! };
    await group.answer(moved, "moved");
    await collect(
      ada,
      () => group.answer(second!, { text: "Ada's" }),
      (all) => all.some(fromAgent),
    );
  });
  assert.deepEqual(answers, [[2, "Ada's"]]);
});

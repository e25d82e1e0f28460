// An active server consents in a person's name, and alters, replays and delays tool requests.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import type { CallResult, Context } from "@blindpipe/client/agent";
import { Agent } from "@blindpipe/client/agent";
import { NotApproved, type ToolRequest } from "@blindpipe/client";
import { newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { Victim, attackedAgent, attackedPerson, changed, flipped } from "./attacks.js";
import { Proxy, type Value } from "./proxy.js";
import {
  MemoryConsents,
  MANIFEST,
  SCOPE,
  TOOLS,
  approved,
  collect,
  decideUntilAnswered,
  fromAgent,
  grant,
  running,
  until,
} from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada", { tools: TOOLS });
});

after(() => cluster?.stop());

function ask(ctx: Context): Promise<CallResult> {
  return ctx.call({ tool: "send_email", scope: SCOPE, arguments: { text: ctx.text } });
}

/** Asks for a mail at each message, and notes what became of it. */
function asking(results: CallResult[]): (ctx: Context) => Promise<void> {
  return async (ctx) => {
    if (ctx.event.event !== "message.created") return;
    results.push(await ask(ctx));
    await ctx.reply("done");
  };
}

test("a denial that the server turns into consent is believed as none", async () => {
  const results: CallResult[] = [];
  let denial: Value = null;
  await attackedAgent(
    cluster,
    ada,
    async ({ proxy, options }) => {
      const conversation = await ada.client.openAgent(options.agentId);
      await grant(options, ada, conversation);
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
        const say = (): Promise<unknown> => conversation.send("please");
        await decideUntilAnswered(ada, say, (request) => request.deny());
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
    (agent) => agent.use(asking(results)),
    MANIFEST,
  );
});

test("an outcome whose event is dropped is read", async () => {
  const results: CallResult[] = [];
  await attackedAgent(
    cluster,
    ada,
    async ({ proxy, options }) => {
      const conversation = await ada.client.openAgent(options.agentId);
      await grant(options, ada, conversation);
      proxy.onFrame = (frame) => (frame.event === "artifact_response" ? [] : [frame]);
      const say = (): Promise<unknown> => conversation.send("please");
      await decideUntilAnswered(ada, say, (request) => approved(request, () => "sent"));
      assert.deepEqual(
        results.map(({ status, result }) => [status, result]),
        [["executed", "sent"]],
      );
    },
    {},
    (agent) => agent.use(asking(results)),
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
      const conversation = await user.client.openAgent(options.agentId);
      await grant(options, user, conversation);
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
    const run = (request: ToolRequest): Promise<void> =>
      approved(request, (mail) => mails.push(mail));
    await running(agent, async () => {
      const conversation = await user.client.openAgent(options.agentId);
      await grant(options, user, conversation);
      const say = (): Promise<unknown> => conversation.send("please");
      await decideUntilAnswered(user, say, run);
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
          const last = all.at(-1)!;
          if (last.type === "tool_request") await run(last.request);
          return last.type === "caught_up";
        },
      );
    } finally {
      Date.now = now;
    }
    assert.deepEqual(victim.faults, ["stale"]);
    assert.equal(mails.length, 1);
  }, { tools: TOOLS });
});

test("a device asks by its own table, whatever the server calls harmless", async () => {
  const consents = new MemoryConsents();
  const tools = {
    send_email: { scope: SCOPE, sensitivity: "low" },
    wipe: { scope: SCOPE, sensitivity: "high" },
    read_files: { scope: "files:read", sensitivity: "low" },
  } as const;
  const named = [...Object.keys(tools), "beep"].map((name) => ({ name, scope: SCOPE }));
  const harmless = { sensitivity: "low", prompt_required: false, silent_devices: ["*"] };
  const rows: readonly [tool: string, lie: object, decision: string][] = [
    // The person's approval on this device counts, not the server's grant.
    ["send_email", harmless, "ask"],
    ["send_email", harmless, "execute"],
    // The device's own table says that this one always asks.
    ["wipe", harmless, "ask"],
    // The server may raise the harm.
    ["send_email", { sensitivity: "high" }, "ask"],
    // Not with this scope, and no tool of this device.
    ["read_files", harmless, "unable"],
    ["beep", harmless, "unable"],
  ];
  const during = async ({ proxy, user }: { proxy: Proxy; user: TestUser }): Promise<void> => {
    const options = await cluster.agent("asker", user.client, { ...MANIFEST, tools: named });
    const agent = new Agent(options).on("message", async (ctx) => {
      const { status } = await ctx.call({ tool: ctx.text, scope: SCOPE, arguments: {} });
      await ctx.reply(status);
    });
    await running(agent, async () => {
      const conversation = await user.client.openAgent(options.agentId);
      await grant(options, user, conversation);
      for (const [tool, lie, decision] of rows) {
        proxy.onFrame = (frame) => [
          frame.event === "artifact_request" ? changed(frame, lie) : frame,
        ];
        const decisions: string[] = [];
        const say = (): Promise<unknown> => conversation.send(tool);
        await decideUntilAnswered(user, say, async (request) => {
          decisions.push(await request.decide());
          if (decisions[0] === "ask") await request.approve();
          // The person wants not to be asked again, where that is possible.
          if (decisions[0] === "ask" && tool !== "wipe") {
            await request.remember().catch((error: Error) => assert.equal(error.name, "UsageError"));
          }
          const executed = request.execute(() => "done");
          if (tool === "read_files") {
            await assert.rejects(executed, NotApproved);
            await request.deny();
          } else await executed;
          decisions.push(await request.decide());
        });
        assert.deepEqual(decisions, [decision, "repeated"], tool);
      }
    });
  };
  await attackedPerson(cluster, during, { tools, consents });
  // Begun and approved calls outlive the program.
  const { begun, remembered } = consents;
  const counts = [begun, remembered].map((records) => Object.keys(records).length);
  assert.deepEqual(counts, [rows.length, 1]);
});

test("an answer counts for its own question, by those who were asked", async () => {
  const bob = await cluster.user("bob");
  const victim = new Victim();
  const made = await cluster.agent("quizmaster", ada.client);
  const proxy = await Proxy.start(made.url);
  const options = { ...made, url: proxy.url, hooks: victim.hooks };
  const answers: unknown[] = [];
  const agent = new Agent(options)
    .on("message", async (ctx) => {
      if (ctx.text !== "quiz") return;
      await ctx.ask("First?", { tag: "quiz", state: { number: 1 } });
      await ctx.ask("Second?", { tag: "quiz", state: { number: 2 } });
    })
    .onAnswer("quiz", async (ctx) => {
      const { question, state, choice, text } = ctx.answer;
      answers.push([question, state["number"], choice ?? text]);
      await ctx.reply("noted");
    });
  await ada.client.openAgent(options.agentId);
  const member_ids = [bob.client.account.userId];
  const group = await ada.client.openGroup(member_ids, { title: "quiz" });
  await group.addAgent(options.agentId, "all");
  await running(agent, async () => {
    const events = await collect(
      ada,
      () => group.send("quiz"),
      (all) => all.filter(fromAgent).length === 2,
    );
    const [first, second] = events.filter(fromAgent);
    const bobs = bob.client.conversation(group.id);
    // Bob was not asked.
    await assert.rejects(bobs.answer(await bobs.open(second!.message, false), "Bob's"));
    // An answer that is moved to another question names that one.
    const { approval } = await ada.client.approval(first!.message.message_id);
    const { approval_id, seq, digest } = approval;
    proxy.onFrame = (frame) => {
      if (frame.event !== "approval.closed") return [frame];
      const moved = changed(frame, { approval_id, seq, digest });
      return [{ ...moved, event_id: newUlid() }, frame];
    };
    await collect(
      ada,
      () => group.answer(second!, { text: "Ada's" }),
      (all) => all.some(fromAgent),
    );
  });
  proxy.close();
  assert.deepEqual(victim.faults, ["bad_signature"]);
  assert.deepEqual(answers, [["Second?", 2, "Ada's"]]);
});

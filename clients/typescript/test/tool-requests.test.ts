// A device runs what it may run, once, and signs what became of it.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent, type CallResult } from "@blindpipe/client/agent";
import { NotApproved, type ToolRequest, UsageError } from "@blindpipe/client";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { attackedPerson } from "./attacks.js";
import type { Answer } from "./proxy.js";
import { MANIFEST, SCOPE, TOOLS, approved, collect, decideUntilAnswered, grant, running, signIn } from "./support.js";

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

const limited: Answer = {
  status: 429,
  body: { error: { code: "RATE_LIMITED", message: "", params: { retry_after_ms: 120_000 } } },
};

test("a tool that has executed is not answered as failed, whatever stops its answer", async () => {
  await attackedPerson(cluster, async ({ proxy, user }) => {
    const options = await cluster.agent("asker", user.client, MANIFEST);
    const agent = new Agent(options).on("message", (ctx) => {
      void ctx.call({ tool: "send_email", scope: SCOPE, arguments: {} }).catch(() => {});
    });
    const responses: { status: string; reason?: string }[] = [];
    const rows: readonly [run: () => unknown, refusal: Answer | undefined, error: object | null][] =
      [
        [() => "sent", limited, { code: "RATE_LIMITED" }],
        [() => "sent", { status: 404, body: {} }, { status: 404 }],
        // No content holds such a number.
        [() => 2 ** 60, undefined, { name: "UsageError" }],
        [() => "sent", undefined, null],
        [() => Promise.reject(new Error("no mail")), undefined, null],
      ];
    await running(agent, async () => {
      const conversation = await user.client.openAgent(options.agentId);
      await grant(options, user, conversation);
      for (const [run, refusal, error] of rows) {
        proxy.before = ({ path, body }) => {
          if (!path.endsWith("/response")) return undefined;
          responses.push({ status: body.status, reason: body.reason });
          return refusal;
        };
        await collect(
          user,
          () => conversation.send("please"),
          async (all) => {
            const last = all.at(-1)!;
            if (last.type !== "tool_request") return false;
            const executed = approved(last.request, run);
            await (error ? assert.rejects(executed, error) : executed);
            return true;
          },
        );
      }
    });
    assert.deepEqual(responses, [
      { status: "executed", reason: undefined },
      { status: "executed", reason: undefined },
      { status: "executed", reason: undefined },
      { status: "failed", reason: "tool_failed" },
    ]);
  }, { tools: TOOLS });
});

/** An agent that asks for the tool that a message names, and notes what became of it. */
async function asking(
  user: TestUser,
  during: (say: (tool: string) => Promise<unknown>, results: CallResult[]) => Promise<void>,
): Promise<void> {
  const tools = ["send_email", "beep"].map((name) => ({ name, scope: SCOPE }));
  const options = await cluster.agent("asker", user.client, { ...MANIFEST, tools });
  const results: CallResult[] = [];
  const agent = new Agent(options).on("message", async (ctx) => {
    results.push(await ctx.call({ tool: ctx.text, scope: SCOPE, arguments: { to: "Ada" } }));
    await ctx.reply("done");
  });
  await running(agent, async () => {
    const conversation = await user.client.openAgent(options.agentId);
    await grant(options, user, conversation);
    await during((tool) => conversation.send(tool), results);
  });
}

test("a request that nobody approved executes nothing", async () => {
  const ran: unknown[] = [];
  const run = (tool: string, args: unknown): string => (ran.push([tool, args]), "sent");
  const user = await cluster.user("ada", {
    tools: { send_email: { ...TOOLS.send_email, run } },
  });
  await asking(user, async (say, results) => {
    const kept: ToolRequest[] = [];
    for (let round = 0; round < 2; round++) {
      // The approval of the first request is no word about the second.
      await decideUntilAnswered(user, () => say("send_email"), async (request) => {
        kept.push(request);
        assert.equal(await request.decide(), "ask");
        await assert.rejects(request.execute(run), NotApproved);
        await assert.rejects(request.execute(), { name: "NotApproved", code: "NOT_APPROVED" });
        assert.equal(ran.length, round);
        await request.approve();
        // Without a function, that of the table runs.
        await request.execute();
        await request.execute(run);
      });
    }
    assert.deepEqual(ran, [
      ["send_email", { to: "Ada" }],
      ["send_email", { to: "Ada" }],
    ]);
    assert.deepEqual(
      results.map(({ status, result }) => [status, result]),
      [
        ["executed", "sent"],
        ["executed", "sent"],
      ],
    );
  });
});

test("a tool that a person has remembered runs unasked until the time is over", async () => {
  const user = await cluster.user("ada", { tools: TOOLS });
  const decisions: string[] = [];
  const now = Date.now;
  try {
    await asking(user, async (say) => {
      for (const daysLater of [0, 0, 2.9, 3.1]) {
        await decideUntilAnswered(user, () => say("send_email"), async (request) => {
          Date.now = () => now() + daysLater * 24 * 3_600_000;
          decisions.push(await request.decide());
          if (decisions.length === 1) await request.remember({ days: 3 });
          Date.now = now;
          await approved(request, () => "sent");
        });
      }
    });
  } finally {
    Date.now = now;
  }
  assert.deepEqual(decisions, ["ask", "execute", "execute", "ask"]);
});

test("a tool that a device does not know is answered at once", async () => {
  const user = await cluster.user("ada", { tools: TOOLS });
  await asking(user, async (say, results) => {
    const unknown = { status: "failed", reason: "unknown_tool", result: null, message: null };
    const never = (): void => assert.fail("it ran");
    await decideUntilAnswered(user, () => say("beep"), async (request) => {
      assert.equal(await request.decide(), "unable");
      await request.approve();
      await request.execute(never);
    });
    // Nobody decides: the client answers by itself.
    await decideUntilAnswered(user, () => say("beep"), async () => {});
    assert.deepEqual(results, [unknown, unknown]);
  });
});

/** Ada on a second device, which has the same tools. */
async function phoneOf(user: TestUser): Promise<TestUser> {
  const phone = await signIn(user, cluster.nodes[1]!, "phone", { tools: TOOLS });
  await phone.devices.restore(user.protectionPassword);
  return { ...user, client: phone };
}

test("of two devices one runs a request that names none", async () => {
  const laptop = await cluster.user("ada", { tools: TOOLS });
  const phone = await phoneOf(laptop);
  const ran: string[] = [];
  await asking(laptop, async (say, results) => {
    const here: (() => void)[] = [];
    const decide = async (request: ToolRequest): Promise<void> => {
      await request.approve();
      // Both devices have the request before one of them runs it.
      await new Promise<void>((resolve) => {
        if (here.push(resolve) === 2) here.forEach((go) => go());
      });
      await request.execute((tool) => ran.push(tool) && "sent");
    };
    let begun = (): void => {};
    const caughtUp = new Promise<void>((resolve) => (begun = resolve));
    const onPhone = decideUntilAnswered(phone, async () => begun(), decide);
    await caughtUp;
    await decideUntilAnswered(laptop, () => say("send_email"), decide);
    await onPhone;
    assert.deepEqual([ran, results.map(({ status }) => status)], [["send_email"], ["executed"]]);
  });
});

test("a request that names another device runs on none else", async () => {
  const laptop = await cluster.user("ada", { tools: TOOLS });
  await phoneOf(laptop);
  const options = await cluster.agent("asker", laptop.client, MANIFEST);
  const calls: { device?: string; tool: string }[] = [
    { tool: "send_email" },
    { tool: "send_email", device: "phone" },
  ];
  const agent = new Agent(options).on("message", async (ctx) => {
    const result = await ctx.call({ ...calls.shift()!, scope: SCOPE, arguments: {} });
    await ctx.reply(`${result.status} ${result.reason}`);
  });
  await running(agent, async () => {
    const conversation = await laptop.client.openAgent(options.agentId);
    await grant(options, laptop, conversation);
    const say = (): Promise<unknown> => conversation.send("please");
    await decideUntilAnswered(laptop, say, async (request) => {
      await request.remember({ days: 1 });
      await request.execute(() => "sent");
    });
    // Neither memory nor approval lets anything run that is for the phone.
    await collect(laptop, say, async (all) => {
      const last = all.at(-1)!;
      if (last.type !== "tool_request") return false;
      assert.equal(await last.request.decide(), "unable");
      await assert.rejects(last.request.remember({ days: 1 }), UsageError);
      await last.request.approve();
      const never = (): void => assert.fail("it ran");
      await assert.rejects(last.request.execute(never), NotApproved);
      return true;
    });
    // The agent waits for the phone; the end of the grant ends the call.
    for await (const { grant_id } of laptop.client.grants()) {
      await laptop.client.revokeGrant(grant_id);
    }
  });
});

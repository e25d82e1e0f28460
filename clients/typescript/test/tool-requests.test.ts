// A device that has run a tool never signs that it failed.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import { devCluster, type DevCluster } from "@blindpipe/client/testing";
import { attackedPerson } from "./attacks.js";
import type { Answer } from "./proxy.js";
import { MANIFEST, SCOPE, collect, grant, running } from "./support.js";

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
            const executed = last.request.execute(run);
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
  });
});

// An agent of the Vercel AI SDK whose tools run only with people's signatures.
import { openai } from "@ai-sdk/openai";
import { Agent } from "@blindpipe/client/agent";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";

const deploy = tool({
  description: "Deploys a version.",
  inputSchema: z.object({ version: z.string() }),
  needsApproval: true,
  execute: ({ version }) => `${version} is live`,
});
const worker = { model: openai("gpt-5-mini"), tools: { deploy }, stopWhen: stepCountIs(8) };
const agent = Agent.fromEnv();

async function run(ctx, messages) {
  const result = await generateText({ ...worker, messages });
  const asked = result.content.filter((part) => part.type === "tool-approval-request");
  if (asked.length === 0) return await ctx.reply(result.text);
  const calls = asked.map(({ toolCall }) => ({ tool: toolCall.toolName, arguments: toolCall.input }));
  const text = `Run ${calls.map((call) => call.tool).join(", ")}?`;
  // The state travels with the question, so any process can go on.
  const ids = asked.map((request) => request.approvalId);
  const state = { messages: [...messages, ...result.response.messages], ids };
  return await ctx.approve("tools", { calls }, { text, state });
}

agent.on("message", (ctx) => run(ctx, [{ role: "user", content: ctx.text }]));

agent.onDecision("tools", (ctx) => {
  const { outcome, state } = ctx.decision;
  const approved = outcome === "approved";
  const content = state.ids.map((id) => ({ type: "tool-approval-response", approvalId: id, approved }));
  return run(ctx, [...state.messages, { role: "tool", content }]);
});

await agent.run();

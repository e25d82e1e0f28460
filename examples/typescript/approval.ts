// An agent that asks before it acts: with a deadline by a tool call, or with time by a question.
//
// Needs BLINDPIPE_URL, BLINDPIPE_AGENT_ID, BLINDPIPE_TOKEN and BLINDPIPE_KEY. The person grants
// `notification:send`, which the agent's manifest declares.
import { Agent } from "@blindpipe/client/agent";

const agent = Agent.fromEnv();

agent.on("message", async (ctx) => {
  if (ctx.text === "deploy") {
    // May wait for days: no process waits, and the state travels with the question.
    await ctx.ask("Deploy 1.4.2?", {
      tag: "deploy",
      choices: ["Deploy", "Not now"],
      state: { version: "1.4.2" },
    });
    return;
  }
  // The person's device executes and signs, or nobody does.
  const sent = await ctx.call({
    tool: "send_email",
    scope: "notification:send",
    arguments: { to: "team@example.com", text: ctx.text },
    prompt: "Send this to the team?",
  });
  await ctx.reply(sent.status === "executed" ? "Sent." : `Not sent: ${sent.reason}.`);
});

agent.onAnswer("deploy", async (ctx) => {
  const { choice, state } = ctx.answer;
  await ctx.reply(choice === "Deploy" ? `Deploying ${String(state["version"])}.` : "Another time.");
});

await agent.run();

// An agent that shows its answer while it writes it. The end is one durable, signed message.
//
// Needs BLINDPIPE_URL, BLINDPIPE_AGENT_ID, BLINDPIPE_TOKEN and BLINDPIPE_KEY.
import { setTimeout as pause } from "node:timers/promises";
import { Agent } from "@blindpipe/client/agent";

/** Stands for a language model: words, one after the other. */
async function* model(question: string): AsyncGenerator<string> {
  for (const word of `You asked: ${question} The answer is forty-two.`.split(/(?<= )/)) {
    await pause(50);
    yield word;
  }
}

const agent = Agent.fromEnv();

agent.on("message", async (ctx) => {
  // A restarted process asks the history first, since a model costs money.
  if (ctx.replayed && (await ctx.answered())) return;
  const out = ctx.stream();
  for await (const word of model(ctx.text)) out.write(word);
  await out.end();
});

await agent.run();

// The smallest agent: it repeats what it hears, encrypted end to end.
//
// Needs BLINDPIPE_URL, BLINDPIPE_AGENT_ID, BLINDPIPE_TOKEN and BLINDPIPE_KEY.
import { Agent } from "@blindpipe/client/agent";

const agent = Agent.fromEnv();

agent.on("message", (ctx) => ctx.reply(`You said: ${ctx.text}`));

// Until SIGTERM; it finishes what it began.
await agent.run();

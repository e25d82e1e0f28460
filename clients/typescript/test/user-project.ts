// The program of a user, which is compiled as users compile theirs; nothing runs it.
import { Agent, RateLimited, toNode, type Context } from "@blindpipe/client/agent";
import { Client, type ClientEvent, type DeviceTool } from "@blindpipe/client";
import { AgentKey, generateProtectionPassword } from "@blindpipe/client/e2ee";
import { devCluster } from "@blindpipe/client/testing";

const agent: Agent = Agent.fromEnv({
  concurrency: 4,
  hooks: { retry: ({ wait_ms }) => void wait_ms },
});
agent.on("message", async (ctx: Context) => {
  const out = ctx.stream();
  out.write(ctx.text);
  await out.end();
  const sent = await ctx.call({
    tool: "send_email",
    scope: "notification:send",
    arguments: { a: 1 },
  });
  if (sent.status === "executed") await ctx.reply("Sent.");
  await ctx.ask("Deploy?", { tag: "deploy", choices: ["Deploy"], state: { version: "1" } });
});
agent.onAnswer(
  "deploy",
  async (ctx) => void (await ctx.reply(String(ctx.answer.state["version"]))),
);
export const POST: (request: Request) => Promise<Response> = agent.webhook("a secret of one's own making");
export const node = toNode(POST);
export const key: string = AgentKey.random().toText();
export const password: string = generateProtectionPassword();
const tools: Record<string, DeviceTool> = {
  send_email: { scope: "notification:send", sensitivity: "low" },
};
const client = await Client.login({
  url: "https://x",
  email: "a",
  password: "b",
  turnstileToken: "c",
  deviceId: "laptop",
  tools,
});
const conversation = await client.openAgent("id");
for await (const event of client.events()) {
  const each: ClientEvent = event;
  if (each.type === "message") console.log(each.opened?.content["text"]);
  if (each.type === "tool_request") await each.request.execute((tool, args) => ({ tool, args }));
}
try {
  await conversation.send("x");
} catch (error) {
  if (error instanceof RateLimited) console.log(error.params);
}
const cluster = await devCluster();
const ada = await cluster.user("ada");
export const another = new Agent(await cluster.agent("echo", ada.client));
await agent.run({ signal: AbortSignal.timeout(1000) });

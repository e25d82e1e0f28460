// The TypeScript client's part in the tests of the Python client: `agent`, or `person`.
//
// An agent prints what it hears and answers people. A person restores the keys of another device,
// prints all texts of a conversation, and sends one.
const [, , dist, part, ...parameters] = process.argv;

async function agent() {
  const { Agent } = await import(`${dist}/agent/index.js`);
  const heard = Agent.fromEnv().on("message", async (ctx) => {
    console.log(`heard: ${ctx.text}`);
    if (ctx.sender.type === "user") await ctx.reply(`TypeScript heard: ${ctx.text}`);
  });
  await heard.run();
}

async function person() {
  const [conversationId] = parameters;
  const { Client } = await import(`${dist}/index.js`);
  const { BLINDPIPE_URL: url, EMAIL: email, PASSWORD: password } = process.env;
  const options = { url, email, password, turnstileToken: "dev-pass", deviceId: "tablet" };
  const client = await Client.login(options);
  await client.devices.restore(process.env.PROTECTION);
  const conversation = client.conversation(conversationId);
  const texts = [];
  for await (const { opened, fault } of conversation.history()) {
    texts.unshift(fault ? fault.reason : opened.content.text);
  }
  await conversation.send("from TypeScript");
  console.log(JSON.stringify(texts));
}

await (part === "agent" ? agent() : person());

// The TypeScript client's part in the tests of the Python client: `agent`, `person`, `asker`, or
// `decider`.
//
// An agent prints what it hears and answers people. A person restores the keys of another device,
// prints all texts of a conversation, and sends one. An asker reacts, edits its reply, asks for an
// approval, and prints the receipt of the decision. A decider prints what it is shown, and answers.
const [, , dist, part, ...parameters] = process.argv;

async function agent() {
  const { Agent } = await import(`${dist}/agent/index.js`);
  const heard = Agent.fromEnv().on("message", async (ctx) => {
    console.log(`heard: ${ctx.text}`);
    if (ctx.sender.type === "user") await ctx.reply(`TypeScript heard: ${ctx.text}`);
  });
  await heard.run();
}

async function asker() {
  const { Agent } = await import(`${dist}/agent/index.js`);
  const asking = Agent.fromEnv().on("message", async (ctx) => {
    await ctx.react("👀");
    await ctx.edit(await ctx.reply("a draft"), "done");
    await ctx.approve("deploy", { version: ctx.text }, { choices: ["Now", "Later"] });
  });
  asking.onDecision("deploy", (ctx) => console.log(JSON.stringify(ctx.decision.receipt)));
  await asking.run();
}

async function decider() {
  const { timeline } = await import(`${dist}/index.js`);
  const client = await signedIn();
  const [conversationId, choice] = parameters;
  const { value: page } = await client.conversation(conversationId).pages().next();
  const shown = timeline(page.messages, page.refs).map(({ content, edits, reactions }) => {
    const emojis = reactions.map(({ emoji }) => emoji);
    return [content.type, content.text, edits, emojis];
  });
  for await (const request of client.approvals()) await request.answer(choice);
  console.log(JSON.stringify(shown));
}

async function signedIn() {
  const { Client } = await import(`${dist}/index.js`);
  const { BLINDPIPE_URL: url, EMAIL: email, PASSWORD: password } = process.env;
  const options = { url, email, password, turnstileToken: "dev-pass", deviceId: "tablet" };
  const client = await Client.login(options);
  await client.devices.restore(process.env.PROTECTION);
  return client;
}

async function person() {
  const client = await signedIn();
  const [conversationId] = parameters;
  const conversation = client.conversation(conversationId);
  const texts = [];
  for await (const { opened, fault } of conversation.history()) {
    texts.unshift(fault ? fault.reason : opened.content.text);
  }
  await conversation.send("from TypeScript");
  console.log(JSON.stringify(texts));
}

await { agent, person, asker, decider }[part]();

// A person and an agent of the TypeScript client, for the tests of the Python client.
//
// It reads the person's commands as lines of JSON, `{id, do, …}`, and prints a line `{id, answer}`
// or `{id, error}` for each. The agent prints a line `{conversation, …}` for all that it hears.
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const [, , dist] = process.argv;
const { Agent } = await import(`${dist}/agent/index.js`);
const { Client, Receipt, timeline } = await import(`${dist}/index.js`);
const scope = "notification:send";
/** More than an envelope holds. */
const LARGE_TEXT_REPEATS = 125_000;
const LOOK_INTERVAL_MS = 20;
const FIND_TIMEOUT_MS = 30_000;

const print = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const base64 = (bytes) => Buffer.from(bytes).toString("base64");

function newFile({ name, content_type: contentType, data, caption, thumbnail }) {
  const { content_type, data: picture, width, height } = thumbnail;
  const shown = { contentType: content_type, bytes: Buffer.from(picture, "base64"), width, height };
  return { name, contentType, bytes: Buffer.from(data, "base64"), caption, thumbnail: shown };
}

// The agent.

const told = (ctx, what) => print({ conversation: ctx.conversation, ...what });

async function heard(ctx) {
  const isFile = ctx.payload.type === "file";
  const data = isFile ? { data: base64(await ctx.file().bytes()) } : {};
  told(ctx, { heard: { ...ctx.payload, ...data } });
}

/** The agent's acts, by the words that a person says. */
const acts = {
  async changes(ctx) {
    await ctx.react("👀");
    await ctx.react("🎉");
    await ctx.react("🎉", { remove: true });
    await ctx.edit(await ctx.reply("a draft"), "done");
    await ctx.delete(await ctx.reply("a mistake"));
  },
  file: (ctx) => ctx.sendFile(newFile(JSON.parse(process.env.FILE))),
  large: (ctx) => ctx.reply("large ".repeat(LARGE_TEXT_REPEATS)),
  question: (ctx) => {
    const asked = { tag: "shade", choices: ["Dark", "Light"], state: { n: 1 } };
    const question = { type: "question", text: "Which shade?", ...asked, for: [ctx.sender.id] };
    return ctx.reply(question);
  },
  ask(ctx) {
    const asked = { tag: "colour", choices: ["Red", "Blue"], state: { n: 2 } };
    return ctx.ask("Which colour?", asked);
  },
  approve(ctx) {
    const asked = { text: "Deploy?", state: { n: 3 } };
    return ctx.approve("deploy", { version: "1.4.2" }, asked);
  },
  async tool(ctx) {
    const args = { to: "bob" };
    const asked = { tool: "send_email", scope, arguments: args, prompt: "Write to Bob?" };
    const { status, result } = await ctx.call(asked);
    told(ctx, { call: { status, result } });
  },
  async stream(ctx) {
    const stream = ctx.stream();
    stream.write("One, ");
    stream.write("two");
    let steered = [];
    while (steered.length === 0) {
      await sleep(LOOK_INTERVAL_MS);
      steered = await ctx.steer();
    }
    told(ctx, { steered: steered.map(({ text }) => text) });
    stream.write(", three.");
    await stream.end();
  },
  async status(ctx) {
    ctx.status("searching");
    await new Promise((resolve) => ctx.stopped.addEventListener("abort", resolve));
    told(ctx, { stopped: true });
  },
};

function decided(ctx) {
  const { outcome, name, arguments: args, state, choice, text, receipt } = ctx.decision;
  told(ctx, { decision: { outcome, name, arguments: args, state, choice, text }, receipt });
}

function answered(ctx) {
  const { choice, text, state, question } = ctx.answer;
  told(ctx, { answer: { choice, text, state, question } });
}

const agent = Agent.fromEnv().on("message", async (ctx) => {
  await heard(ctx);
  const act = acts[ctx.text];
  if (!act) return;
  await act(ctx);
  if (!ctx.stopped.aborted) told(ctx, { done: ctx.text });
});
for (const change of ["edit", "delete", "reaction"]) agent.on(change, heard);
for (const name of ["deploy", "colour"]) agent.onDecision(name, decided);
for (const tag of ["shade", "colour"]) agent.onAnswer(tag, answered);

// The person.

const { BLINDPIPE_URL: url, EMAIL: email, PASSWORD: password } = process.env;
const tools = { send_email: { scope, sensitivity: "low" } };
const client = await Client.login({
  url,
  email,
  password,
  turnstileToken: "dev-pass",
  deviceId: "speaker",
  tools,
});
await client.devices.restore(process.env.PROTECTION);
/** The messages that have come, by id. */
const received = new Map();
/** The streams of each conversation, as they are shown. */
const live = new Map();

function screen(conversationId) {
  if (!live.has(conversationId)) live.set(conversationId, { statuses: [], text: "" });
  return live.get(conversationId);
}

async function watch() {
  for await (const event of client.events()) {
    if (event.type === "message") received.set(event.message.message_id, event);
    else if (event.type === "status") screen(event.conversationId).statuses.push(event.text);
    else if (event.type === "delta") screen(event.conversationId).text += event.append;
    else if (event.type === "checkpoint") screen(event.conversationId).text = event.text;
    else if (event.type === "tool_request") {
      const { request } = event;
      await request.approve();
      await request.execute((tool, args) => ({ tool, args, prompt: request.prompt }));
    }
  }
}

/** A message that has come, or comes soon. */
async function find(id) {
  const last = Date.now() + FIND_TIMEOUT_MS;
  while (!received.has(id) && Date.now() < last) await sleep(LOOK_INTERVAL_MS);
  return received.get(id);
}

async function shown(conversation, { received, state, content, edits, reactions }) {
  const { message, opened } = received;
  const data = content?.type === "file" ? base64(await conversation.downloadFile(content)) : null;
  return {
    id: message.message_id,
    sender: message.sender.type,
    in_reply_to: message.in_reply_to ?? null,
    own_re: opened?.re ?? null,
    state,
    content,
    data,
    edits,
    reactions: reactions.map(({ emoji, senders }) => [emoji, senders.map(({ type }) => type)]),
  };
}

const commands = {
  open: async ({ agent_id }) => (await client.openAgent(agent_id)).id,
  send: async (talk, { content }) => (await talk.send(content)).message_id,
  reply: async (talk, { content }, message) => (await talk.reply(message, content)).message_id,
  edit: async (talk, { content }, message) => (await talk.edit(message, content)).message_id,
  delete: (talk, _, message) => talk.delete(message),
  react: async (talk, { emoji, remove }, message) =>
    (await talk.react(message, emoji, { remove })).message_id,
  send_file: async (talk, { file }) => (await talk.sendFile(newFile(file))).message_id,
  answer: (talk, { choice }, message) => talk.answer(message, choice),
  stop: (talk) => talk.stop(),
  live: (talk) => screen(talk.id),
  async show(talk) {
    const { value: page } = await talk.pages().next();
    const { messages, refs } = page;
    return Promise.all(timeline(messages, refs).map((item) => shown(talk, item)));
  },
  async decide(_, { message, how, words }) {
    const request = await client.approval(message);
    const { text, choices, arguments: args } = request;
    if (how === "approve") await request.approve();
    else if (how === "deny") await request.deny(words);
    else await request.answer(words);
    return { text, choices: [...choices], arguments: args };
  },
  receipt: async (_, { message }) => (await client.approval(message)).receipt(),
  async verify(_, { message, receipt }) {
    return (await (await client.approval(message)).verify(Receipt.from(receipt))).state;
  },
};

async function obey({ id, do: name, conversation, ...given }) {
  if (name === "open") return print({ id, answer: await commands.open(given) });
  const talk = client.conversation(conversation);
  const isAbout = ["reply", "edit", "delete", "react", "answer"].includes(name);
  const about = isAbout ? await find(given.message) : null;
  print({ id, answer: (await commands[name](talk, given, about)) ?? null });
}

async function listen() {
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    obey(command).catch((error) => print({ id: command.id, error: String(error?.stack ?? error) }));
  }
  // The test has ended.
  process.exit(0);
}

await Promise.race([watch(), agent.run(), listen()]);

// Each example, run as its own process against a real cluster.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import type { AgentOptions } from "@blindpipe/client/agent";
import type { ClientEvent, Conversation } from "@blindpipe/client";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import {
  MANIFEST,
  TOOLS,
  answerTo,
  approved,
  collect,
  decideUntilAnswered,
  fromAgent,
  grant,
  startExample,
  stopExample,
} from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada", { tools: TOOLS });
});

after(() => cluster?.stop());

async function withExample(
  name: string,
  during: (conversation: Conversation, agent: AgentOptions) => Promise<void>,
): Promise<void> {
  const options = await cluster.agent(name, ada.client, MANIFEST);
  const child = await startExample(name, options, ada);
  try {
    await during(await ada.client.openAgent(options.agentId), options);
  } finally {
    assert.equal(await stopExample(child), 0, "SIGTERM ends an agent with 0");
  }
}

test("echo.ts repeats", async () => {
  await withExample("echo", async (conversation) => {
    const answer = await answerTo(ada, () => conversation.send("Grüße"));
    assert.equal(answer.opened?.content["text"], "You said: Grüße");
  });
});

test("streaming.ts shows its answer while it writes it", async () => {
  await withExample("streaming", async (conversation) => {
    const isDone = (all: ClientEvent[]): boolean => all.some(fromAgent);
    const events = await collect(ada, () => conversation.send("why?"), isDone);
    const deltas = events.filter((event) => event.type === "delta");
    const message = events.find(fromAgent)!;
    const text = "You asked: why? The answer is forty-two.";
    assert.equal(message.opened?.content["text"], text);
    assert(deltas.length >= 2, "it was shown in pieces");
    assert(text.startsWith(deltas.map((delta) => delta.append).join("")));
    assert(deltas.every((delta) => delta.streamId === message.message.client_message_id));
  });
});

test("approval.ts asks a device, which executes once and signs", async () => {
  await withExample("approval", async (conversation, agent) => {
    await grant(agent, ada, conversation);
    const mails: unknown[] = [];
    const say = (): Promise<unknown> => conversation.send("hello");
    const events = await decideUntilAnswered(ada, say, async (request) => {
      assert.deepEqual(request.arguments, { to: "team@example.com", text: "hello" });
      assert.equal(request.prompt, "Send this to the team?");
      await approved(request, (mail) => mails.push(mail));
      await request.execute((_, mail) => mails.push(mail));
    });
    assert.equal(events.find(fromAgent)!.opened?.content["text"], "Sent.");
    assert.equal(mails.length, 1);
  });
});

test("approval.ts is told of a denial", async () => {
  await withExample("approval", async (conversation, agent) => {
    await grant(agent, ada, conversation);
    const say = (): Promise<unknown> => conversation.send("hello");
    const events = await decideUntilAnswered(ada, say, (request) => request.deny("not_today"));
    assert.equal(events.find(fromAgent)!.opened?.content["text"], "Not sent: not_today.");
  });
});

test("approval.ts asks a question whose state comes back with the answer", async () => {
  await withExample("approval", async (conversation) => {
    const question = await answerTo(ada, () => conversation.send("deploy"));
    assert.equal(question.opened?.content["text"], "Deploy 1.4.2?");
    const reply = await answerTo(ada, () => conversation.answer(question, "Deploy"));
    assert.equal(reply.opened?.content["text"], "Deploying 1.4.2.");
  });
});

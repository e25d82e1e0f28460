// Edits, deletions, reactions and replies, of people and of agents, on two nodes.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import { type Conversation, timeline, type TimelineItem, UsageError } from "@blindpipe/client";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { answerTo, running, until } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;
let bob: TestUser;

before(async () => {
  cluster = await devCluster();
  [ada, bob] = await Promise.all([
    cluster.user("ada"),
    cluster.user("bob", { url: cluster.nodes[1]! }),
  ]);
});

after(() => cluster?.stop());

async function shown(conversation: Conversation): Promise<TimelineItem[]> {
  const { value: page } = await conversation.pages().next();
  return timeline(page!.messages, page!.refs);
}

test("people change their messages", async () => {
  const own = await ada.client.openDirect(bob.client.account.userId);
  const theirs = bob.client.conversation(own.id);
  for (const text of ["first", "second", "third"]) await own.send(text);
  const [first, second] = (await shown(theirs)).map((item) => item.received);
  await theirs.react(first!, "👍");
  await theirs.react(first!, "🎉");
  await theirs.react(first!, "🎉", { remove: true });
  await theirs.reply(second!, "an answer");
  await assert.rejects(theirs.edit(first!, "not mine"), UsageError);
  const mine = (await shown(own)).map((item) => item.received);
  await own.edit(mine[1]!, "2nd");
  await own.edit(mine[1]!, "zweite");
  await own.delete(mine[2]!);
  await own.delete(mine[2]!);
  for (const side of [own, theirs]) {
    const [one, two, three, answer] = await shown(side);
    assert.deepEqual(one!.reactions.map((each) => each.emoji), ["👍"]);
    assert.deepEqual([two!.content, two!.edits], [{ type: "text", text: "zweite" }, 2]);
    assert.equal(three!.state, "deleted");
    assert.equal(three!.received.message.payload, null);
    assert.equal(answer!.received.opened!.content["re"], two!.received.opened!.re);
  }
});

test("agents change their messages, and see those of others", async () => {
  const options = await cluster.agent("editor", ada.client);
  const conversation = await ada.client.openAgent(options.agentId);
  const heard: string[] = [];
  const agent = new Agent(options)
    .on("message", async (ctx) => {
      heard.push(ctx.text);
      await ctx.react("👀");
      const draft = await ctx.reply("a draft");
      const mistake = await ctx.reply("a mistake");
      await ctx.edit(draft, "done");
      await ctx.delete(mistake);
    })
    .on("reaction", (ctx) => heard.push(String(ctx.payload["emoji"])));
  await running(agent, async () => {
    const came = await answerTo(ada, () => conversation.send("please"));
    await conversation.react(came, "❤️");
    await until(() => heard.includes("❤️"));
  });
  assert.deepEqual(heard, ["please", "❤️"]);
  const [asked, draft, mistake] = await shown(conversation);
  assert.deepEqual(asked!.reactions.map((each) => each.emoji), ["👀"]);
  assert.deepEqual([draft!.content!["text"], draft!.edits], ["done", 1]);
  assert.equal(mistake!.state, "deleted");
});

test("a deleted message reaches no handler", async () => {
  const options = await cluster.agent("late", ada.client);
  const heard: string[] = [];
  const hooks = { undecryptable: ({ reason }: { reason: string }) => heard.push(reason) };
  const agent = new Agent({ ...options, hooks }).on("message", (ctx) => heard.push(ctx.text));
  await agent.check();
  const conversation = await ada.client.openAgent(options.agentId);
  await conversation.send("a secret");
  const { value: secret } = await conversation.history().next();
  await conversation.delete(secret!);
  await running(agent, async () => {
    await conversation.send("a question");
    await until(() => heard.includes("a question"));
  });
  assert.deepEqual(heard, ["a question"]);
});

// An active server alters, replays, reorders, holds back and invents what people and agents say.
import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";
import { after, before, test } from "node:test";
import type { ClientEvent, ReceivedMessage } from "@blindpipe/client";
import { newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import {
  again,
  attackedAgent,
  attackedPerson,
  changed,
  flipped,
  isMessage,
  shown,
} from "./attacks.js";
import type { Proxy, Value } from "./proxy.js";
import { collect, fromAgent, texts, until } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;
let bob: TestUser;

before(async () => {
  cluster = await devCluster();
  [ada, bob] = await Promise.all([cluster.user("ada"), cluster.user("bob")]);
});

after(() => cluster?.stop());

type Change = (message: Value, other: string, user: string) => object;

/** Changes of a message, given the ids of another conversation and member; their reasons. */
const CHANGES: readonly [
  name: string,
  change: Change,
  reason: string,
  /** The event is moved along, or alone. */
  moves?: "along" | "alone",
][] = [
  ["its ciphertext", ({ payload }) => ({ payload: flipped(payload) }), "bad_ciphertext"],
  ["its sender", ({ sender }, _, id) => ({ sender: { ...sender, id } }), "bad_ciphertext"],
  ["its conversation", (_, conversation_id) => ({ conversation_id }), "no_epoch_key", "along"],
  ["its conversation, by none", () => ({ conversation_id: newUlid() }), "no_epoch_key", "along"],
  ["its conversation, by no id", () => ({ conversation_id: "none" }), "malformed", "along"],
  ["its conversation, not its event's", (_, id) => ({ conversation_id: id }), "malformed"],
  ["its event's conversation", () => ({}), "malformed", "alone"],
  ["its id", () => ({ client_message_id: newUlid() }), "bad_ciphertext"],
  ["what it answers", () => ({ in_reply_to: newUlid() }), "bad_ciphertext"],
  ["its words, by clear text", () => ({ payload: { type: "text", text: "forged" } }), "clear"],
  ["its scheme", ({ payload }) => ({ payload: { ...payload, v: 2 } }), "unknown_version"],
  ["its words, by nothing", () => ({ payload: null }), "clear"],
];
const REASONS = CHANGES.map(([, , reason]) => reason);

/** Changes each message as the next row says; the one after them is left as it is. */
function alterEach(proxy: Proxy, other: string, user: string): void {
  const rows = [...CHANGES];
  proxy.onFrame = (frame) => {
    const row = isMessage(frame) ? rows.shift() : undefined;
    if (!row) return [frame];
    const [, change, , moves] = row;
    const event = changed(frame, change(frame.data, other, user));
    if (!moves) return [event];
    const conversation_id = moves === "alone" ? other : event.data.conversation_id;
    return [{ ...event, conversation_id }];
  };
}

test("altered, moved and invented messages reach no handler", async () => {
  await attackedAgent(cluster, ada, async ({ proxy, victim, options }) => {
    const conversation = await ada.client.openAgent(options.agentId);
    const member_ids = [bob.client.account.userId];
    const other = await ada.client.openGroup(member_ids, { title: "other" });
    await other.addAgent(options.agentId, "all");
    await other.rotate();
    alterEach(proxy, other.id, bob.client.account.userId);
    for (const [name] of CHANGES) await conversation.send(`alter ${name}`);
    await conversation.send("leave this");
    await until(() => victim.heard.length > 0 && victim.faults.length === CHANGES.length);
    assert.deepEqual(victim.heard, ["leave this"]);
    assert.deepEqual([...victim.faults].sort(), [...REASONS].sort());
  });
});

test("altered, moved and invented messages are shown as said by nobody", async () => {
  await attackedPerson(cluster, async ({ proxy, victim, user }) => {
    const user_id = user.client.account.userId;
    const conversation = await ada.client.openDirect(user_id);
    const member_ids = [user_id, bob.client.account.userId];
    const other = await ada.client.openGroup(member_ids, { title: "other" });
    await other.send("here");
    await conversation.send("first");
    const events = await collect(
      user,
      async () => {
        alterEach(proxy, other.id, bob.client.account.userId);
        for (const [name] of CHANGES) await conversation.send(`alter ${name}`);
        await conversation.send("leave this");
      },
      (all) => shown(all).includes("leave this"),
    );
    assert.deepEqual(shown(events), [...REASONS, "leave this"]);
    assert.deepEqual(victim.faults, REASONS);
  });
});

test("a message that is replayed is handled, shown and answered once", async () => {
  await attackedAgent(cluster, ada, async ({ proxy, victim, options }) => {
    const conversation = await ada.client.openAgent(options.agentId);
    let held: Value = null;
    proxy.onFrame = (frame) => {
      if (!isMessage(frame)) return [frame];
      held = frame;
      return [frame, again(frame)];
    };
    await conversation.send("once");
    await until(() => victim.heard.length > 0);
    proxy.onFrame = (frame) => (isMessage(frame) ? [again(held), frame] : [frame]);
    await conversation.send("end");
    await until(() => victim.heard.includes("end"));
    assert.deepEqual(victim.heard, ["once", "end"]);
    await until(async () => (await texts(conversation)).length === 4);
  });
  await attackedPerson(cluster, async ({ proxy, user }) => {
    const user_id = user.client.account.userId;
    const conversation = await ada.client.openDirect(user_id);
    proxy.onFrame = (frame) => (isMessage(frame) ? [frame, again(frame), again(frame)] : [frame]);
    const events = await collect(
      user,
      async () => {
        await conversation.send("once");
        await conversation.send("end");
      },
      (all) => shown(all).includes("end"),
    );
    assert.deepEqual(shown(events), ["once", "end"]);
  });
});

test("a message that is held back too long is stale; another time is shown", async () => {
  await attackedAgent(
    cluster,
    ada,
    async ({ proxy, victim, options }) => {
      const conversation = await ada.client.openAgent(options.agentId);
      let held: Value = null;
      proxy.onFrame = (frame) => {
        if (!isMessage(frame) || held) return [frame];
        held = frame;
        return [];
      };
      await conversation.send("too late");
      await until(() => held);
      await pause(1_000);
      proxy.say(held);
      await until(() => victim.faults.length > 0);
      assert.deepEqual(victim.faults, ["stale"]);
      await conversation.send("in time");
      await until(() => victim.heard.length > 0);
      assert.deepEqual(victim.heard, ["in time"]);
    },
    { maxAge: 1_000 },
  );
  await attackedPerson(cluster, async ({ proxy, user }) => {
    const user_id = user.client.account.userId;
    const conversation = await ada.client.openDirect(user_id);
    const created_at = new Date(Date.now() + 10 * 60_000).toISOString();
    proxy.onFrame = (frame) => [isMessage(frame) ? changed(frame, { created_at }) : frame];
    const events = await collect(
      user,
      () => conversation.send("now"),
      (all) => shown(all).includes("now"),
    );
    const [message] = events.filter((event) => event.type === "message");
    assert.deepEqual(
      message?.opened?.notices.map(({ kind }) => kind),
      ["other_time"],
    );
    assert(Math.abs(message!.opened!.sentAt!.getTime() - Date.now()) < 60_000);
  });
});

test("messages in another order are each handled once; answers name their message", async () => {
  await attackedAgent(cluster, ada, async ({ proxy, victim, options }) => {
    const conversation = await ada.client.openAgent(options.agentId);
    await conversation.send("zero");
    await until(() => victim.heard.length > 0);
    const held: Value[] = [];
    proxy.onFrame = (frame) => {
      if (!isMessage(frame)) return [frame];
      held.push(frame);
      return held.length === 3 ? [...held].reverse() : [];
    };
    for (const text of ["one", "two", "three"]) await conversation.send(text);
    await until(() => victim.heard.length === 4);
    assert.deepEqual(victim.heard, ["zero", "three", "two", "one"]);
    await until(async () => (await texts(conversation)).length === 8);
    const byId = new Map<string, unknown>();
    for await (const { message, opened } of conversation.history()) {
      byId.set(message.message_id, opened?.content["text"]);
    }
    for await (const { message, opened } of conversation.history()) {
      if (message.sender.type !== "agent") continue;
      const answered = byId.get(message.in_reply_to!);
      assert.equal(opened?.content["text"], `You said: ${String(answered)}`);
    }
  });
});

test("nothing shows that a message was dropped but what answers it", async () => {
  // Silence is not protected: neither a fault nor a notice tells of it.
  const dropped = newUlid();
  const drop = (frame: Value): Value[] =>
    isMessage(frame) && frame.data.client_message_id === dropped ? [] : [frame];
  await attackedAgent(cluster, ada, async ({ proxy: before, victim: agents, options }) => {
    await attackedPerson(cluster, async ({ proxy, victim: bobs, user }) => {
      await ada.client.openAgent(options.agentId);
      const group = await ada.client.openGroup([user.client.userId]);
      await group.addAgent(options.agentId, "all");
      const lost = async (): Promise<ReceivedMessage> => {
        for await (const message of group.history())
          if (message.opened?.content["text"] === "two") return message;
        throw new Error("the history has all messages");
      };
      let told: readonly number[] = [];
      const notices = (): number[] => [agents.notices.length, bobs.notices.length];
      const events = await collect(
        user,
        async () => {
          before.onFrame = proxy.onFrame = drop;
          await group.send("one");
          await until(() => agents.heard.length > 0);
          told = notices();
          await group.send("two", { clientMessageId: dropped });
          await group.send("three", { inReplyTo: await lost() });
        },
        (all) => shown(all).includes("three"),
      );
      await until(() => agents.heard.includes("three"));
      const said = events
        .filter((event) => event.type === "message")
        .filter(({ message }) => message.sender.type === "user");
      assert.deepEqual(shown(said), ["one", "three"]);
      assert.deepEqual(agents.heard, ["one", "three"]);
      assert.deepEqual([notices(), agents.faults, bobs.faults], [told, [], []]);
      // The reply to it is the sign: it answers what was not shown.
      assert.deepEqual(said.map(isQuoted), [true, false]);
      // A history that drops nothing has it.
      assert((await texts(user.client.conversation(group.id))).includes("two"));
    });
  });
});

function isQuoted({ opened }: ReceivedMessage): boolean {
  return !opened!.notices.some(({ kind }) => kind === "no_quote");
}

test("a reply is quoted only if it names what was shown", async () => {
  await attackedPerson(cluster, async ({ proxy, user }) => {
    const direct = await ada.client.openDirect(user.client.userId);
    for (const text of ["delete?", "keep?", "again?"]) await direct.send(text);
    const sent: ReceivedMessage[] = [];
    for await (const message of direct.history()) sent.push(message);
    const [again, keep, remove] = sent as [ReceivedMessage, ReceivedMessage, ReceivedMessage];
    const ids = [keep, remove].map(({ message }) => message.message_id);
    const exchanged = new Map([ids, ids.toReversed()] as [string, string][]);
    proxy.onFrame = (frame) => {
      if (!isMessage(frame) || frame.data.in_reply_to) return [frame];
      const { message_id } = frame.data;
      return [changed(frame, { message_id: exchanged.get(message_id) ?? message_id })];
    };
    const replies: ReceivedMessage[] = [];
    for await (const event of user.client.events()) {
      if (event.type === "caught_up") {
        await user.client.conversation(direct.id).send("mine");
        const { value: mine } = await direct.history().next();
        for (const inReplyTo of [keep, again, mine!]) await direct.send("yes", { inReplyTo });
      }
      if (event.type === "message" && event.message.in_reply_to) replies.push(event);
      if (replies.length === 3) break;
    }
    assert.deepEqual(replies.map(isQuoted), [false, true, true]);
  });
});

test("an agent that takes clear text takes none where anything was encrypted", async () => {
  await attackedAgent(
    cluster,
    ada,
    async ({ proxy, victim, options }) => {
      const conversation = await ada.client.openAgent(options.agentId);
      await conversation.send("encrypted");
      await until(() => victim.heard.length > 0);
      const payload = { type: "text", text: "forged" };
      proxy.onFrame = (frame) => [isMessage(frame) ? changed(frame, { payload }) : frame];
      await conversation.send("true");
      await until(() => victim.faults.length > 0);
      assert.deepEqual([victim.heard, victim.faults], [["encrypted"], ["clear"]]);
    },
    { plaintext: "allow" },
  );
});

test("an earlier message of somebody else, told as the agent's own, is no success", async () => {
  const errors: unknown[] = [];
  await attackedAgent(
    cluster,
    ada,
    async ({ proxy, options }) => {
      const conversation = await ada.client.openAgent(options.agentId);
      let seen: Value = null;
      proxy.onFrame = (frame) => {
        if (isMessage(frame)) seen = frame.data;
        return [frame];
      };
      proxy.before = ({ method, path }) => {
        if (method !== "POST" || !path.endsWith("/messages")) return undefined;
        const { message_id, seq, payload } = seen;
        const params = { message_id, seq, payload };
        const error = { code: "IDEMPOTENCY_CONFLICT", message: "it is there", params };
        return { status: 409, body: { error } };
      };
      await conversation.send("never answered");
      await until(() => errors.length > 0);
      assert.equal((errors[0] as Error).name, "IdConflict");
      assert.deepEqual(await texts(conversation), ["never answered"]);
    },
    { hooks: { dead_letter: ({ error }) => void errors.push(error) } },
  );
});

test("a file that is altered, cut or exchanged gives out nothing", async () => {
  await attackedPerson(cluster, async ({ proxy, user }) => {
    const user_id = user.client.account.userId;
    const conversation = await ada.client.openDirect(user_id);
    const bytes = new TextEncoder().encode("x".repeat(100_000));
    await conversation.sendFile({ name: "plan.txt", contentType: "text/plain", bytes });
    const theirs = user.client.conversation(conversation.id);
    const { value: message } = await theirs.history().next();
    const content = message!.opened!.content;
    assert.deepEqual(new Uint8Array(await theirs.downloadFile(content)), bytes);
    const changes: readonly ((file: Uint8Array) => Uint8Array)[] = [
      (file) => file.map((byte, i) => (i === 70_000 ? byte ^ 1 : byte)),
      (file) => file.slice(0, 65_536 + 20 + 16),
      () => new Uint8Array(0),
    ];
    for (const change of changes) {
      proxy.onBytes = ({ path }, file) => (path.startsWith("/objects/") ? change(file) : file);
      await assert.rejects(theirs.downloadFile(content), { name: "DecryptError" });
    }
  });
});

test("pieces of a stream are shown in their places or not at all", async () => {
  await attackedAgent(
    cluster,
    ada,
    async ({ options }) => {
      await attackedPerson(cluster, async ({ proxy, victim, user }) => {
        const conversation = await user.client.openAgent(options.agentId);
        const deltas: Value[] = [];
        // The pieces before the second are asked for in vain.
        proxy.onClientFrame = (frame) => (frame.type === "stream.sync" ? { type: "ping" } : frame);
        proxy.onFrame = (frame) => {
          if (frame.type !== "stream.delta") return [frame];
          deltas.push(frame);
          const [first, second] = deltas;
          // The second comes before the first, and again after it.
          // A third is altered, a fourth renumbered.
          if (deltas.length === 1) return [];
          if (deltas.length > 2) return [{ ...frame, n: frame.n + 1 }];
          const bent = { ...second, data: flipped({ ciphertext: second.data }).ciphertext };
          return [
            bent,
            second,
            first,
            second,
            { ...second, n: 7 },
            { ...second, stream_id: newUlid() },
          ];
        };
        const isDone = (all: ClientEvent[]): boolean =>
          all.some(fromAgent) && all.some((event) => event.type === "event");
        const events = await collect(
          user,
          () => conversation.send("write"),
          (all) => {
            const isEnded = all.some(fromAgent);
            // After the message nothing of its stream is shown.
            if (isEnded && deltas.length > 0) proxy.say({ ...deltas[0], n: 99 });
            return isEnded || isDone(all);
          },
        );
        const pieces = events.filter((event) => event.type === "delta");
        assert.deepEqual(
          pieces.map(({ n, append }) => [n, append]),
          [
            [0, "one "],
            [1, "two "],
          ],
        );
        // Altered, renumbered, of another stream, and the third, which is renumbered too.
        assert.deepEqual(victim.faults, Array(4).fill("bad_ciphertext"));
        assert.equal(events.find(fromAgent)?.opened?.content["text"], "one two three ");
      });
    },
    {},
    (agent) =>
      agent.use(async (ctx) => {
        const out = ctx.stream();
        for (const word of ["one ", "two ", "three "]) {
          out.write(word);
          await pause(150);
        }
        await out.end();
      }),
  );
});

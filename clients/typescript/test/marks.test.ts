// The words of people and agents are nowhere on the server: in no row, log, mail, object or memory.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { closeSync, openSync, readFileSync, readSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import { newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster } from "@blindpipe/client/testing";
import { MANIFEST, TOOLS, approved, asAgent, collect, fromAgent, running } from "./support.js";

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

/** The cluster's files that hold a mark: database and its logs, logs of nodes, objects, mails. */
function filesWith(mark: string): string[] {
  const folder = dirname(dirname(cluster.authority));
  try {
    const found = execFileSync("grep", ["-rlaF", "--", mark, folder], { encoding: "utf8" });
    return found.split("\n").filter((line) => line !== "");
  } catch (error) {
    // 1: nothing was found. 2: a file went away meanwhile; the lines of the others count.
    const { stdout } = error as { stdout: string };
    return stdout.split("\n").filter((line) => line !== "");
  }
}

/** The process of the cluster's Redis, by the folder of its settings. */
function redisProcess(): string {
  const settings = join(dirname(dirname(cluster.authority)), "redis/redis.conf");
  const isRedis = (pid: string): boolean => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0").includes(settings);
    } catch {
      return false;
    }
  };
  const pid = readdirSync("/proc").find((name) => /^\d+$/.test(name) && isRedis(name));
  assert(pid, "the cluster's Redis was not found");
  return pid;
}

/** Which of these bytes the writable memory of a process holds. */
function inMemory(pid: string, marks: readonly string[]): string[] {
  const memory = openSync(`/proc/${pid}/mem`, "r");
  const found = new Set<string>();
  try {
    for (const line of readFileSync(`/proc/${pid}/maps`, "utf8").split("\n")) {
      const range = /^([0-9a-f]+)-([0-9a-f]+) rw/.exec(line);
      if (!range) continue;
      const [from, to] = [parseInt(range[1]!, 16), parseInt(range[2]!, 16)];
      const bytes = Buffer.alloc(to - from);
      try {
        readSync(memory, bytes, 0, bytes.length, from);
      } catch {
        continue;
      }
      for (const mark of marks) if (bytes.includes(mark)) found.add(mark);
    }
    return [...found];
  } finally {
    closeSync(memory);
  }
}

test("no row, log, mail, object or memory holds what a group and its agent say", async () => {
  const unique = newUlid();
  const mark = (name: string): string => `mark-${name}-${unique}`;
  const title = `title-${newUlid()}`;
  const ada = await cluster.user("ada", { tools: TOOLS });
  const bob = await cluster.user("bob", { url: cluster.nodes[1]! });
  const options = await cluster.agent("discreet", ada.client, MANIFEST);
  const agent = new Agent(options).on("message", async (ctx) => {
    if (ctx.payload["type"] === "file") return;
    if (ctx.conversation !== group.id) {
      const { result } = await ctx.call({
        tool: "send_email",
        scope: "notification:send",
        arguments: { to: mark("argument") },
        prompt: mark("prompt"),
      });
      await ctx.reply(`${mark("reply")} ${String(result)}`);
      return;
    }
    const out = ctx.stream();
    out.write(mark("delta"));
    await new Promise((resolve) => setTimeout(resolve, 200));
    out.write(` ${mark("reply")}`);
    await out.end();
  });
  await agent.check();
  const alone = await ada.client.openAgent(options.agentId);
  const group = await ada.client.openGroup([bob.client.account.userId], { title });
  await group.addAgent(options.agentId, "all");
  await running(agent, async () => {
    const events = await collect(
      ada,
      () => group.send(mark("text")),
      (all) => all.some(fromAgent),
    );
    assert(events.some((event) => event.type === "delta" && event.append === mark("delta")));
    assert.equal(
      events.find(fromAgent)?.opened?.content["text"],
      `${mark("delta")} ${mark("reply")}`,
    );
    await collect(
      ada,
      async () => {
        const path = `/agents/${options.agentId}/grants/request`;
        const scopes = ["notification:send"];
        const asked = await asAgent(options, "POST", path, { conversation_id: alone.id, scopes });
        const { data } = (await asked.json()) as { data: { grant_id: string } };
        await ada.client.decideGrant(data.grant_id, "approve");
        await alone.send(mark("text"));
      },
      async (all) => {
        const last = all.at(-1)!;
        if (last.type === "tool_request") await approved(last.request, () => mark("result"));
        return all.some(fromAgent);
      },
    );
  });
  const bytes = new TextEncoder().encode(mark("content").repeat(100));
  await group.sendFile({ name: mark("name"), contentType: "text/plain", bytes });

  // A title is the server's to know, so it shows that the searches find what is there.
  assert.notDeepEqual(filesWith(title), []);
  assert.deepEqual(filesWith(unique), []);
  const { redis_url } = JSON.parse(readFileSync(cluster.file, "utf8")) as { redis_url: string };
  const { password } = new URL(redis_url);
  assert.deepEqual(inMemory(redisProcess(), [password, unique]), [password]);
});

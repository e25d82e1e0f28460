// A sender names what is no file: nothing is called, and nothing is given out.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { devCluster, type DevCluster } from "@blindpipe/client/testing";
import { attackedPerson } from "./attacks.js";

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

test("a file message that leads elsewhere, or has no hash or key, makes no call", async () => {
  const ada = await cluster.user("ada");
  await attackedPerson(cluster, async ({ proxy, user }) => {
    const conversation = await ada.client.openDirect(user.client.account.userId);
    const bytes = new TextEncoder().encode("plan");
    await conversation.sendFile({ name: "plan.txt", contentType: "text/plain", bytes });
    const theirs = user.client.conversation(conversation.id);
    const { value: message } = await theirs.history().next();
    const { content } = message!.opened!;
    const poll = `agents/${user.client.userId}/messages/poll?cursor=1-9&wait=0`;
    const changes: readonly object[] = [
      { object_key: `../${poll}` },
      { object_key: `a/../../${poll}` },
      { object_key: `%2e%2e/${poll}` },
      { object_key: "..\\conversations" },
      { object_key: `${String(content["object_key"])}?x=1` },
      { object_key: `${String(content["object_key"])}#x` },
      { object_key: "" },
      { object_key: 7 },
      { sha256: undefined },
      { sha256: "" },
      { sha256: "no hash" },
      { key: undefined },
      { key: "AAAA" },
    ];
    const before = proxy.requests.length;
    for (const change of changes) {
      const forged = { ...content, ...change };
      const name = JSON.stringify(change);
      await assert.rejects(theirs.downloadFile(forged), { reason: "malformed" }, name);
    }
    assert.deepEqual(proxy.requests.slice(before), []);
    assert.deepEqual(new Uint8Array(await theirs.downloadFile(content)), bytes);
  });
});

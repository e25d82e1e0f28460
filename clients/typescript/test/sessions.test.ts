// A conversation is read once, and nobody is given it half read.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { devCluster, type DevCluster } from "@blindpipe/client/testing";

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

/** Answers of these routes are held back until they are let go. */
class Gate {
  isOpen = true;
  #waiting: (() => void)[] = [];
  #onHeld: (() => void)[] = [];

  constructor(private readonly route: RegExp) {}

  readonly fetch: typeof fetch = async (...parameters) => {
    const answer = await fetch(...parameters);
    if (this.isOpen || !this.route.test(String(parameters[0]))) return answer;
    await new Promise<void>((resolve) => {
      this.#waiting.push(resolve);
      this.#onHeld.splice(0).forEach((tell) => tell());
    });
    return answer;
  };

  /** Closes; resolves once an answer is held back. */
  close(): Promise<void> {
    this.isOpen = false;
    return new Promise((resolve) => this.#onHeld.push(resolve));
  }

  open(): void {
    this.isOpen = true;
    this.#waiting.splice(0).forEach((go) => go());
  }
}

for (const [what, route] of [
  ["list of members", /\/conversations\/[^/]+$/],
  ["list of keys", /\/recipients/],
  ["secret", /\/keys\/groups\/[^/]+$/],
] as const) {
  test(`while the ${what} is read, a second load waits for it`, async () => {
    const gate = new Gate(route);
    const ada = await cluster.user("ada");
    const bob = await cluster.user("bob", { fetch: gate.fetch });
    const { id } = await ada.client.openDirect(bob.client.userId);
    await ada.client.conversation(id).send("hello");
    const held = gate.close();
    const { session } = bob.client;
    const first = session.load(id);
    await held;
    const second = session.load(id).then(({ info, members, recipients, room }) => ({
      isRead: info !== null,
      members: members.size,
      recipients: recipients.length,
      epoch: room.newest?.epoch,
      sealable: room.sealable() !== null,
    }));
    // A load that does not wait ends without the answer that is held back.
    const isEarly = await Promise.race([
      second.then(() => true),
      new Promise((resolve) => setImmediate(() => resolve(false))),
    ]);
    gate.open();
    assert.equal(isEarly, false);
    const wanted = { isRead: true, members: 2, recipients: 2, epoch: 1, sealable: true };
    assert.deepEqual(await second, wanted);
    await first;
  });
}

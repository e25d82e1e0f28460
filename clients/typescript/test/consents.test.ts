// The records of a device: what was remembered, for how long, and what withdraws it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Consents, type RequestPlace, UsageError, Kind, newUlid } from "@blindpipe/client/e2ee";

const DAY_MS = 24 * 3_600_000;
const me = { type: "user", id: newUlid() } as const;
const agent = { type: "agent", id: newUlid() } as const;
const here = new Uint8Array(16).fill(1);
const there = new Uint8Array(16).fill(2);
const tools = {
  mail: { scope: "mail", sensitivity: "low" },
  post: { scope: "mail", sensitivity: "medium" },
  wipe: { scope: "disk", sensitivity: "high" },
} as const;

function asked(tool: string, scope = "mail"): RequestPlace {
  const requestId = newUlid();
  return { kind: Kind.request, userId: me.id, requestId, tool, scope };
}

test("silence is of one conversation, agent and tool, and ends", () => {
  const consents = new Consents(tools);
  const decide = (tool: string, where = here, now = 0, by: typeof agent = agent): string =>
    consents.decide(me, where, by, asked(tool), null, now);
  consents.remember(here, agent, asked("mail"), null, 30, 0);
  assert.equal(decide("mail"), "execute");
  assert.equal(decide("mail", here, 30 * DAY_MS - 1), "execute");
  assert.equal(decide("mail", here, 30 * DAY_MS), "ask");
  // A clock that was set back makes no silence longer.
  assert.equal(decide("mail", here, -1), "ask");
  assert.equal(decide("post"), "ask");
  assert.equal(decide("mail", there), "ask");
  assert.equal(decide("mail", here, 0, { type: "agent", id: newUlid() }), "ask");
  assert.equal(consents.decide(me, here, agent, asked("mail"), "high", 0), "ask");
  const again = new Consents(tools, JSON.parse(JSON.stringify(consents.store())));
  assert.equal(again.decide(me, here, agent, asked("mail"), null, 0), "execute");
  // A table that names another scope now was not what the person agreed to.
  const other = { mail: { scope: "disk", sensitivity: "low" } } as const;
  const changed = new Consents(other, consents.store());
  assert.equal(changed.decide(me, here, agent, asked("mail", "disk"), null, 0), "ask");
});

test("neither a high tool nor more than 30 days is remembered", () => {
  const consents = new Consents(tools);
  const refused: [RequestPlace, "high" | null, number][] = [
    [asked("mail"), null, 31],
    [asked("mail"), null, 30.01],
    [asked("mail"), null, 0],
    [asked("mail"), null, Number.NaN],
    [asked("mail"), null, Infinity],
    [asked("wipe", "disk"), null, 1],
    [asked("post"), "high", 1],
    [asked("beep"), null, 1],
    [asked("mail", "disk"), null, 1],
  ];
  for (const [place, manifest, days] of refused) {
    assert.throws(() => consents.remember(here, agent, place, manifest, days, 0), UsageError);
  }
  assert.deepEqual(consents.store().remembered, {});
});

test("what was remembered is withdrawn by scope, by conversation or as a whole", () => {
  const rows: [where: Uint8Array | null, scope: string | null, left: string[]][] = [
    [null, null, []],
    [null, "mail", []],
    [null, "disk", ["mail here", "post here", "mail there"]],
    [here, null, ["mail there"]],
    [there, "mail", ["mail here", "post here"]],
  ];
  for (const [where, scope, left] of rows) {
    const consents = new Consents(tools);
    consents.remember(here, agent, asked("mail"), null, 1, 0);
    consents.remember(here, agent, asked("post"), null, 1, 0);
    consents.remember(there, agent, asked("mail"), null, 1, 0);
    assert.equal(consents.withdraw(where, { type: "agent", id: newUlid() }, null), false);
    assert.equal(consents.withdraw(where, agent, scope), left.length < 3);
    const names = Object.values(consents.store().remembered).map(
      (each) => `${each!.tool} ${each!.conversation.startsWith("01") ? "here" : "there"}`,
    );
    assert.deepEqual(names, left);
  }
});

test("a request that began is kept for 31 days", () => {
  // An earlier version kept no times: the first request of this version dates its names.
  const first = new Consents(tools);
  first.begin(agent, "old", 0);
  let consents = new Consents(tools, { begun: Object.keys(first.store().begun) });
  const began = (requestId: string, now: number): boolean => {
    const isNew = consents.begin(agent, requestId, now);
    consents = new Consents(tools, JSON.parse(JSON.stringify(consents.store())));
    return isNew;
  };
  assert.deepEqual([began("old", 0), began("first", DAY_MS)], [false, true]);
  assert.deepEqual([began("old", 32 * DAY_MS), began("first", 32 * DAY_MS)], [false, false]);
  assert.ok(began("second", 32 * DAY_MS), "31 days are kept");
  assert.equal(Object.keys(consents.store().begun).length, 3);
  assert.ok(began("third", 32 * DAY_MS + 1));
  const names = Object.keys(consents.store().begun).map((name) => name.split(":").at(-1));
  assert.deepEqual(names, ["second", "third"], "31 days and a millisecond are not");
  assert.ok(began("fourth", 0), "a clock that was set back forgets nothing");
  assert.equal(began("second", 0), false);
});

test("a store is given the records that have changed alone", () => {
  const consents = new Consents(tools);
  assert.equal(consents.takeChanged(), null);
  consents.begin(agent, "first", 0);
  consents.remember(here, agent, asked("mail"), null, 1, 0);
  const changed = consents.takeChanged()!;
  const [name] = Object.keys(changed.remembered);
  assert.deepEqual([Object.values(changed.begun), name!.endsWith(":mail")], [[0], true]);
  assert.equal(consents.takeChanged(), null);
  consents.withdraw(here, agent, null);
  assert.deepEqual(consents.takeChanged(), { begun: {}, remembered: { [name!]: null } });
  consents.begin(agent, "second", 1);
  const second = consents.takeChanged()!;
  assert.deepEqual(Object.values(second.begun), [1]);
  consents.notKept(second);
  assert.deepEqual(consents.takeChanged(), second);
});

// The state machine: the same table of cases in every language.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as e2ee from "@blindpipe/client/e2ee";
import { type Vector, placeOf, principal, read } from "./vector-support.js";

const bytes = e2ee.fromHex;
const { hex, principalName } = e2ee;

function told(notices: readonly e2ee.Notice[]): unknown[] {
  return notices.map(({ kind, about, keyId }) => [kind, principalName(about), keyId]);
}

function directoryKey(key: Vector): e2ee.DirectoryKey {
  const { introduction } = key;
  return {
    deviceId: key.device_id ?? undefined,
    publicKey: bytes(key.public_key),
    signingPublicKey: bytes(key.signing_public_key),
    schemes: key.schemes,
    introduction: introduction
      ? { byKeyId: bytes(introduction.by), signature: bytes(introduction.signature) }
      : undefined,
    retired: key.retired,
    retiredAt: key.retired_at,
  };
}

function incoming(event: Vector): e2ee.Incoming {
  return {
    sender: principal(event.sender),
    place: placeOf(event.place),
    envelope: event.envelope === null ? null : bytes(event.envelope),
    createdAt: event.created_at,
    isLive: event.live,
    answered: event.answered === null ? null : e2ee.base64(bytes(event.answered)),
  };
}

/** A client with one conversation. */
class Machine {
  readonly me: e2ee.Principal;
  readonly conversation: e2ee.Bytes;
  readonly pins: e2ee.Trust;
  readonly room: e2ee.Room;
  readonly consents: e2ee.Consents;
  keys: readonly e2ee.OpeningKeys[] = [];
  asked: { user: string; digest: e2ee.Bytes } | null = null;

  constructor(private readonly vector: Vector) {
    this.me = principal(vector.me);
    this.conversation = bytes(vector.conversation);
    const own = vector.keys.map((key: Vector) => key.key_id);
    this.pins = new e2ee.Trust(this.me, vector.policy, own);
    this.room = new e2ee.Room(this.conversation, vector.plaintext);
    const rows = vector.tools.map(({ tool, scope, sensitivity }: Vector) => [
      tool,
      { scope, sensitivity },
    ]);
    this.consents = new e2ee.Consents(Object.fromEntries(rows));
  }

  async start(): Promise<void> {
    const keys = this.vector.keys.map((key: Vector) =>
      e2ee.importOpeningKey(bytes(key.key_id), bytes(key.x25519_private)),
    );
    this.keys = await Promise.all(keys);
  }

  async step(event: Vector): Promise<unknown> {
    const isFallible = ["message", "request", "response"].includes(event.do);
    try {
      return await this.#step(event);
    } catch (error) {
      if (!(error instanceof e2ee.DecryptError)) throw error;
      const notices = error instanceof e2ee.Refusal ? told(error.notices) : [];
      return { refused: error.reason, ...(isFallible ? { notices } : {}) };
    }
  }

  async #compare(event: Vector, now: number): Promise<unknown> {
    const of = principal(event.of);
    const compare = {
      verify_number: () => this.pins.verifyNumber(of, event.number, now),
      verify: () => this.pins.verify(of, event.key, now),
      link: () => this.pins.link(of, event.key, now),
    }[event.do as "link" | "verify" | "verify_number"];
    const notices = await compare();
    if (notices && notices.length > 0) this.room.keysChanged(of);
    return { done: notices !== null, notices: told(notices ?? []) };
  }

  async #step(event: Vector): Promise<unknown> {
    const { pins, room, me } = this;
    // Without a time, no key has an end.
    const now = event.now ?? 0;
    switch (event.do) {
      case "directory": {
        const of = principal(event.of);
        const notices = await pins.directory(of, event.keys.map(directoryKey), now);
        if (notices.length > 0) room.keysChanged(of);
        return { notices: told(notices) };
      }
      case "confirm": {
        const done = pins.confirm(principal(event.of), event.key, now);
        room.keysChanged(principal(event.of));
        return { done };
      }
      case "safety_number":
        return { number: await pins.safetyNumber(principal(event.of), now) };
      case "verify_number":
      case "verify":
      case "link":
        return this.#compare(event, now);
      case "introduced_by":
        return { devices: pins.introducedBy(principal(event.of), event.device_id, now) };
      case "standing": {
        const of = principal(event.of);
        const pin = pins.find(of, event.key);
        return {
          standing: pin?.standing ?? null,
          retired: pin !== undefined && e2ee.isRetired(pin, now),
          speaks_bp1: pins.speaks(of),
        };
      }
      case "members": {
        const list = event.list.map((row: Vector) => ({
          principal: principal(row.principal),
          visibility: row.visibility,
        }));
        return { notices: told(room.members(list)) };
      }
      case "server_epoch": {
        const { epoch, rotation_required: rotationRequired, messages } = event;
        room.serverEpoch({ epoch, rotationRequired, messages });
        return {};
      }
      case "wrap": {
        const wrapped = e2ee.base64(bytes(event.wrap));
        const taken = await room.wrap(pins, this.keys, event.epoch, wrapped, event.now);
        const { isNewest, rotator, sid, notices } = taken;
        return {
          newest: isNewest,
          rotator: principalName(rotator),
          sid: hex(sid),
          notices: told(notices),
        };
      }
      case "sealing": {
        const sealing = room.sealing(me, event.answered, event.now);
        return "with" in sealing
          ? { epoch: sealing.with.epoch, sid: hex(sealing.with.sid) }
          : sealing;
      }
      case "give": {
        const given = await room.give(pins, principal(event.of), directoryKey(event.key), now);
        return typeof given === "string" ? { given } : { given: "nothing", because: given.because };
      }
      case "writing":
        return { writing: room.writing(pins, event.clear_chosen) };
      case "message": {
        const shown = await room.message(pins, incoming(event), event.now);
        return shown ? { shown: shown.standing, notices: told(shown.notices) } : { repeated: true };
      }
      default:
        return this.#consentStep(event);
    }
  }

  async #consentStep(event: Vector): Promise<unknown> {
    const { consents, conversation } = this;
    switch (event.do) {
      case "remember": {
        const place = placeOf(event.place) as e2ee.RequestPlace;
        const agent = principal(event.agent);
        try {
          consents.remember(conversation, agent, place, null, event.days, event.now);
          return { done: true };
        } catch (error) {
          assert(error instanceof e2ee.UsageError);
          return { done: false };
        }
      }
      case "withdraw":
        return { done: consents.withdraw(conversation, principal(event.agent), event.scope) };
      case "begin":
        return { done: consents.begin(principal(event.agent), event.request_id, 0) };
      case "ask": {
        const place = placeOf(event.place) as e2ee.RequestPlace;
        const content = new TextEncoder().encode(event.content);
        const digest = await e2ee.requestDigest(conversation, this.me, place, content);
        this.asked = { user: place.userId, digest };
        return { digest: hex(digest) };
      }
      case "request": {
        const came = incoming(event);
        const { notices } = await this.room.open(this.pins, came, event.now);
        const place = came.place as e2ee.RequestPlace;
        const manifest = event.manifest ?? null;
        const { me } = this;
        const decision = consents.decide(me, conversation, came.sender, place, manifest, event.now);
        return { decision, notices: told(notices) };
      }
      case "response":
        return this.#response(event);
      default:
        throw new Error(`unknown step ${event.do}`);
    }
  }

  async #response(event: Vector): Promise<unknown> {
    const came = incoming(event);
    const { user, digest } = this.asked!;
    const shown = await e2ee.openResponse(this.room, this.pins, came, { user, digest }, event.now);
    return { shown: shown.standing, notices: told(shown.notices) };
  }
}

for (const vector of read("states").cases) {
  test(vector.name, async () => {
    const machine = new Machine(vector);
    await machine.start();
    for (const [i, { event, expect }] of vector.steps.entries()) {
      assert.deepEqual(await machine.step(event), expect, `step ${i}, ${event.do}`);
    }
  });
}

// The victims of an active server, and the ways in which it changes things.
import { Agent, type AgentOptions } from "@blindpipe/client/agent";
import type { Client, ClientEvent, ClientOptions } from "@blindpipe/client";
import { base64, fromBase64, newUlid } from "@blindpipe/client/e2ee";
import type { DevCluster, TestUser } from "@blindpipe/client/testing";
import { Proxy, type Value } from "./proxy.js";
import { running, signIn } from "./support.js";

/** Things that a client behind the attacker was told, and texts that it took for said. */
export class Victim {
  readonly heard: string[] = [];
  readonly faults: string[] = [];
  readonly notices: [type: string, principalId: string][] = [];
  /** The conversations that notices named. */
  readonly places: [type: string, conversationId: string | null][] = [];
  connections = 0;
  readonly hooks = {
    connected: (): void => void this.connections++,
    undecryptable: ({ reason }: { reason: string }): void => void this.faults.push(reason),
    key_changed: (told: {
      type: string;
      principal_id: string;
      conversation_id: string | null;
    }): void => {
      this.notices.push([told.type, told.principal_id]);
      this.places.push([told.type, told.conversation_id]);
    },
  };

  told(type: string): string[] {
    return this.notices.filter(([told]) => told === type).map(([, id]) => id);
  }
}

/** An agent whose only way to the service is the attacker. It answers what it takes for said. */
export async function attackedAgent(
  cluster: DevCluster,
  owner: TestUser,
  during: (attack: { proxy: Proxy; victim: Victim; options: AgentOptions }) => Promise<void>,
  changes: Partial<AgentOptions> = {},
  prepare: (agent: Agent) => void = () => {},
  manifest?: object,
): Promise<void> {
  const made = await cluster.agent("victim", owner.client, manifest);
  const proxy = await Proxy.start(made.url);
  const victim = new Victim();
  const options = { ...made, url: proxy.url, hooks: victim.hooks, retryDelays: [], ...changes };
  const agent = new Agent(options).on("message", async (ctx) => {
    victim.heard.push(ctx.text);
    await ctx.reply(`You said: ${ctx.text}`);
  });
  prepare(agent);
  try {
    await running(agent, () => during({ proxy, victim, options }));
  } finally {
    proxy.close();
  }
}

/** A person whose only way to the service is the attacker. */
export async function attackedPerson(
  cluster: DevCluster,
  during: (attack: { proxy: Proxy; victim: Victim; user: TestUser }) => Promise<void>,
  changes: Partial<ClientOptions> = {},
): Promise<void> {
  const proxy = await Proxy.start(cluster.nodes[0]!);
  const victim = new Victim();
  try {
    const options = { url: proxy.url, hooks: victim.hooks, ...changes };
    const user = await cluster.user("victim", options);
    await during({ proxy, victim, user });
  } finally {
    proxy.close();
  }
}

/** Signs in again on a device, behind the attacker. */
export async function signInBehind(
  user: TestUser,
  proxy: Proxy,
  deviceId: string,
  options: object = {},
): Promise<{ client: Client; victim: Victim }> {
  const victim = new Victim();
  const { hooks } = victim;
  return { client: await signIn(user, proxy.url, deviceId, { hooks, ...options }), victim };
}

export function isMessage(frame: Value): boolean {
  return frame.event === "message.created";
}

/** The frame of an event with other fields of its data. */
export function changed(frame: Value, fields: object): Value {
  return { ...frame, data: { ...frame.data, ...fields } };
}

/** The event once more, as a new one. */
export function again(frame: Value, later = 1): Value {
  const [epoch, seq] = String(frame.cursor).split("-");
  const number = Number(seq) + later;
  return { ...frame, event_id: newUlid(), cursor: `${epoch}-${number}`, seq: number };
}

/** The payload with a bit of its ciphertext changed. */
export function flipped(payload: Value): Value {
  const bytes = fromBase64(payload.ciphertext);
  bytes[bytes.length - 1]! ^= 1;
  return { ...payload, ciphertext: base64(bytes) };
}

/** Texts and reasons, as a person is shown them. */
export function shown(events: readonly ClientEvent[]): unknown[] {
  return events
    .filter((event) => event.type === "message")
    .map((event) => event.opened?.content["text"] ?? event.fault?.reason);
}

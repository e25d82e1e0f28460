// Helpers of the tests against a cluster.
import { spawn, type ChildProcess } from "node:child_process";
import { createHmac } from "node:crypto";
import { createServer, type RequestListener, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import type { Agent, AgentOptions } from "@blindpipe/client/agent";
import {
  Client,
  type ClientEvent,
  type ConsentStore,
  type Conversation,
  type StoredConsents,
  type ToolRequest,
} from "@blindpipe/client";
import type { TestUser } from "@blindpipe/client/testing";

export const SCOPE = "notification:send";
/** An agent with a single tool, which the server calls harmless. */
export const MANIFEST = {
  tools: [{ name: "send_email", scope: SCOPE }],
  permission_scopes: [{ scope: SCOPE, sensitivity: "low" }],
};

/** The tools of a device that knows that one. */
export const TOOLS = { send_email: { scope: SCOPE, sensitivity: "low" } } as const;

/** Keeps records of consent for the time of a test. */
export class MemoryConsents implements ConsentStore {
  begun: StoredConsents["begun"] = {};
  remembered: StoredConsents["remembered"] = {};

  async loadConsents(): Promise<StoredConsents> {
    return structuredClone({ begun: this.begun, remembered: this.remembered });
  }

  async addConsents({ begun, remembered }: StoredConsents): Promise<void> {
    this.begun = { ...this.begun, ...begun };
    const all = Object.entries({ ...this.remembered, ...remembered });
    this.remembered = Object.fromEntries(all.filter(([, each]) => each !== null));
  }
}

/** The person agrees, and the tool runs. */
export async function approved(
  request: ToolRequest,
  run: (args: ToolRequest["arguments"]) => unknown,
): Promise<void> {
  if ((await request.decide()) === "ask") await request.approve();
  await request.execute((_, args) => run(args));
}

/** Signs in as a person on another device. */
export function signIn(
  user: TestUser,
  url: string,
  deviceId: string,
  options: object = {},
): Promise<Client> {
  const { email, password } = user;
  return Client.login({ url, email, password, turnstileToken: "dev-pass", deviceId, ...options });
}

/** Runs an agent for the time of a test. */
export async function running(
  agent: Agent,
  during: () => Promise<void>,
  options: Parameters<Agent["run"]>[0] = {},
): Promise<void> {
  const stop = new AbortController();
  await agent.check();
  const run = agent.run({ ...options, signal: stop.signal });
  const ended = run.then(() => Promise.reject(new Error("the agent has ended")));
  ended.catch(() => {});
  try {
    await Promise.race([during(), ended]);
  } finally {
    stop.abort();
    await run.catch(() => {});
  }
}

export type MessageEvent = Extract<ClientEvent, { type: "message" }>;

export function fromAgent(event: ClientEvent): event is MessageEvent {
  return event.type === "message" && event.message.sender.type === "agent";
}

/** Reads a person's events until `fits` is true; acts once all earlier ones have come. */
export async function collect(
  user: TestUser,
  act: () => Promise<unknown>,
  isEnough: (events: ClientEvent[]) => boolean | Promise<boolean>,
): Promise<ClientEvent[]> {
  const events: ClientEvent[] = [];
  let hasActed = false;
  for await (const event of user.client.events()) {
    if (hasActed) {
      events.push(event);
      if (await isEnough(events)) return events;
    } else if (event.type === "caught_up") {
      // Earlier events belong to an earlier test.
      hasActed = true;
      await act();
    }
  }
  throw new Error("the events have ended");
}

/** The first message of an agent after `act`. */
export async function answerTo(user: TestUser, act: () => Promise<unknown>): Promise<MessageEvent> {
  const events = await collect(user, act, (all) => all.some(fromAgent));
  return events.find(fromAgent)!;
}

/** Acts, and lets a device decide about tool requests until an agent answers. */
export function decideUntilAnswered(
  user: TestUser,
  act: () => Promise<unknown>,
  decide: (request: ToolRequest) => Promise<unknown>,
): Promise<ClientEvent[]> {
  return collect(user, act, async (all) => {
    const last = all.at(-1)!;
    if (last.type === "tool_request") await decide(last.request);
    return all.some(fromAgent);
  });
}

/** The agent asks for its scope, and the person approves. */
export async function grant(
  options: AgentOptions,
  user: TestUser,
  conversation: Conversation,
): Promise<void> {
  const path = `/agents/${options.agentId}/grants/request`;
  const body = { conversation_id: conversation.id, scopes: [SCOPE] };
  const asked = await asAgent(options, "POST", path, body);
  const { data } = (await asked.json()) as { data: { grant_id: string } };
  await user.client.decideGrant(data.grant_id, "approve");
}

/** Starts an example as its own process. */
export function startExample(
  name: string,
  options: AgentOptions,
  owner: TestUser,
): Promise<ChildProcess> {
  const path = fileURLToPath(new URL(`../examples/${name}.js`, import.meta.url));
  return startProgram(path, options, owner);
}

/** Starts an agent as its own process, and waits until it has a key and is online. */
export async function startProgram(
  path: string,
  options: AgentOptions,
  owner: TestUser,
  settings: Record<string, string> = {},
): Promise<ChildProcess> {
  const child = spawn(process.execPath, [path], {
    stdio: ["ignore", "ignore", "inherit"],
    env: {
      ...process.env,
      ...settings,
      BLINDPIPE_URL: options.url,
      BLINDPIPE_AGENT_ID: options.agentId,
      BLINDPIPE_TOKEN: options.token,
      BLINDPIPE_KEY: String(options.key),
    },
  });
  const path_ = `/agents/${options.agentId}`;
  for (let tries = 0; tries < 200; tries++) {
    const agent = await owner.client.account.http.data<{ connections: unknown[] }>({
      method: "GET",
      path: path_,
    });
    if (agent.connections.length > 0) return child;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  child.kill("SIGKILL");
  throw new Error("the example did not connect");
}

/** Ends an example as an operator would; its exit code. */
export async function stopExample(child: ChildProcess): Promise<number | null> {
  const ended = new Promise<number | null>((resolve) => child.once("exit", resolve));
  child.kill("SIGTERM");
  return ended;
}

/** Waits until something is there. */
export async function until<T>(look: () => T | Promise<T>, ms = 10_000): Promise<NonNullable<T>> {
  for (const end = Date.now() + ms; Date.now() < end;) {
    const found = await look();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  throw new Error("it did not come");
}

/** The texts of a conversation, oldest first; the reason where one does not open. */
export async function texts(conversation: Conversation): Promise<unknown[]> {
  const all: unknown[] = [];
  for await (const { opened, fault } of conversation.history()) {
    all.unshift(opened ? opened.content["text"] : fault?.reason);
  }
  return all;
}

/** Calls of an agent without its client. */
export function asAgent(
  options: AgentOptions,
  method: string,
  path: string,
  body?: unknown,
): Promise<Response> {
  const init: RequestInit = { method, headers: { authorization: `Bearer ${options.token}` } };
  if (body !== undefined) {
    init.headers = { ...init.headers, "content-type": "application/json" };
    init.body = JSON.stringify(body);
  }
  return fetch(options.url + path, init);
}

/** An event as the service delivers it. */
export async function eventOf(options: AgentOptions, name: string): Promise<string> {
  const response = await asAgent(options, "GET", `/agents/${options.agentId}/messages/poll?wait=0`);
  const { data } = (await response.json()) as { data: { event: string }[] };
  return JSON.stringify(data.find(({ event }) => event === name));
}

/** A genuine delivery to a webhook. */
export function signed(secret: string, body: string): Request {
  const now = String(Math.floor(Date.now() / 1000));
  const signature = createHmac("sha256", secret).update(`msg_1.${now}.${body}`).digest("base64");
  const headers = {
    "webhook-id": "msg_1",
    "webhook-timestamp": now,
    "webhook-signature": `v1,${signature}`,
  };
  return new Request("http://agent.invalid/", { method: "POST", headers, body });
}

let collectGarbage: (() => void) | null = null;

/** The memory that is in use, without garbage. */
export function heldBytes(): number {
  setFlagsFromString("--expose-gc");
  collectGarbage ??= runInNewContext("gc") as () => void;
  collectGarbage();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

/** A server of one's own, for deliveries. */
export async function listening(
  listener: RequestListener,
): Promise<{ server: Server; url: string }> {
  const server = createServer(listener);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/` };
}

/** Has the service deliver an agent's events to this address. */
export async function setWebhook(
  options: AgentOptions,
  url: string,
  secret: string,
): Promise<void> {
  const body = { url, secret };
  const answer = await asAgent(options, "PUT", `/agents/${options.agentId}/webhook`, body);
  const { data } = (await answer.json()) as { data: { status: string; last_error: string } };
  if (data.status !== "active") throw new Error(data.last_error);
}

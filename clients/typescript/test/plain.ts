// Clients written against the interface alone: keys of their own scheme, clear payloads. They use
// nothing of the package, as a client of another maker would.
import { type KeyObject, generateKeyPairSync, randomBytes, randomUUID, sign } from "node:crypto";
import { WebSocket } from "ws";
import type { Value } from "./proxy.js";

const blob = (size: number): string => randomBytes(size).toString("base64");

/** A caller of the service; the `data` of each answer, which must be a success. */
async function call(
  url: string,
  token: string | null,
  method: string,
  path: string,
  body?: object,
): Promise<Value> {
  const headers: Record<string, string> = token ? { authorization: `Bearer ${token}` } : {};
  const init: RequestInit = { method, headers };
  if (body) {
    headers["content-type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  const answer = await fetch(url + path, init);
  const told = (await answer.json()) as Value;
  if (!answer.ok) throw new Error(`${method} ${path}: ${JSON.stringify(told)}`);
  return told.data;
}

/** A signed-in person whose device has keys, and says nothing of schemes. */
export class PlainPerson {
  private constructor(
    private readonly url: string,
    readonly id: string,
    private readonly token: string,
  ) {}

  static async register(
    url: string,
    codeOf: (email: string) => Promise<string>,
    name: string,
  ): Promise<PlainPerson> {
    const email = `${name}-${randomUUID()}@example.com`;
    const device_id = randomUUID();
    const turnstile_token = "dev-pass";
    await call(url, null, "POST", "/auth/send-code", { email, scene: "register", turnstile_token });
    const signedIn = await call(url, null, "POST", "/auth/register", {
      email,
      code: await codeOf(email),
      account_password: `account-${randomUUID()}`,
      display_name: name,
      device_locale: "en",
      device_id,
      turnstile_token,
    });
    const person = new PlainPerson(url, signedIn.user_id, signedIn.access_token);
    await person.call("POST", "/keys/backup", {
      backup_a: blob(60),
      backup_b: blob(60),
      argon2_salt: blob(32),
      argon2_params: { m: 65_536, t: 3, p: 1 },
      public_key: blob(32),
      signing_public_key: blob(32),
      device_id,
    });
    return person;
  }

  call(method: string, path: string, body?: object): Promise<Value> {
    return call(this.url, this.token, method, path, body);
  }

  say(conversationId: string, text: string): Promise<Value> {
    const body = { payload: { type: "text", text } };
    return this.call("POST", `/conversations/${conversationId}/messages`, body);
  }

  /** Payloads, oldest first. */
  async history(conversationId: string): Promise<Value[]> {
    const found: Value[] = await this.call("GET", `/conversations/${conversationId}/messages`);
    return found.reverse().map((message) => message.payload);
  }

  /** A socket that is ready; every frame goes to `onFrame`. */
  async connect(onFrame: (frame: Value) => void): Promise<WebSocket> {
    const socket = new WebSocket(`${this.url.replace(/^http/, "ws")}/ws`);
    await new Promise((resolve) => socket.once("open", resolve));
    const ready = new Promise<void>((resolve) => {
      socket.on("message", (data) => {
        const frame = JSON.parse(String(data));
        if (frame.type === "ready") resolve();
        onFrame(frame);
      });
    });
    socket.send(JSON.stringify({ type: "auth", access_token: this.token }));
    await ready;
    return socket;
  }

  /** Makes an epoch of this client's own scheme, and answers its number. */
  async rotate(conversationId: string): Promise<number> {
    const group = await this.call("GET", `/conversations/${conversationId}`);
    const wrapped_keys = [];
    for (const { principal_id, principal_type } of group.members) {
      const isUser = principal_type === "user";
      const path = isUser ? `/keys/users/${principal_id}/devices` : `/agents/${principal_id}/keys`;
      const shown = await this.call("GET", path);
      for (const key of isUser ? shown.devices : shown.keys) {
        const device = isUser ? { device_id: key.device_id } : {};
        wrapped_keys.push({ principal_id, wrapped_key: blob(80), ...device });
      }
    }
    const path = `/keys/groups/${conversationId}/rotate`;
    return (await this.call("POST", path, { base_epoch: group.epoch, wrapped_keys })).epoch;
  }
}

/** An agent that polls, answers in clear, and acknowledges. */
export class PlainAgent {
  readonly heard: Value[] = [];

  constructor(
    private readonly url: string,
    private readonly id: string,
    private readonly token: string,
  ) {}

  call(method: string, path: string, body?: object): Promise<Value> {
    return call(this.url, this.token, method, `/agents/${this.id}${path}`, body);
  }

  /** Registers keys as the interface says, without a word of schemes. */
  async registerKeys(): Promise<void> {
    const signing = generateKeyPairSync("ed25519");
    const raw = (key: KeyObject): string =>
      Buffer.from(key.export({ format: "jwk" }).x!, "base64url").toString("base64");
    const public_key = raw(generateKeyPairSync("x25519").publicKey);
    const signing_public_key = raw(signing.publicKey);
    const timestamp = new Date().toISOString();
    const text = ["keys-register", this.id, public_key, signing_public_key, timestamp].join("|");
    const signature = sign(null, Buffer.from(text), signing.privateKey).toString("base64");
    const body = { public_key, signing_public_key, timestamp, signature };
    await this.call("POST", "/keys/register", body);
  }

  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      for (const event of await this.call("GET", "/messages/poll?wait=1")) {
        if (event.event === "message.created") await this.#answer(event.data);
        await this.call("POST", "/ack", { up_to_seq: event.seq });
      }
    }
  }

  async #answer(message: Value): Promise<void> {
    this.heard.push(message.payload);
    if (message.payload.type !== "text") return;
    const payload = { type: "text", text: `You said: ${message.payload.text}` };
    const path = `/conversations/${message.conversation_id}/messages`;
    await this.call("POST", path, { payload, in_reply_to: message.message_id });
  }
}

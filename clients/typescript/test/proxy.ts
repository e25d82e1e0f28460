// A proxy before a node, for HTTP and WebSocket: it may lose, change, repeat and invent things.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { WebSocket, WebSocketServer } from "ws";

/** A JSON value of the service. */
export type Value = any;

export interface Request {
  readonly method: string;
  /** Path and query. */
  readonly path: string;
  readonly body: Value;
}

export interface Answer {
  readonly status: number;
  readonly body: Value;
}

/** `cut` passes the request on and loses its answer. A number is answered in the node's place. */
export type Fault = number | "cut" | null;

const HOP_BY_HOP = new Set([
  "connection",
  "content-length",
  "content-encoding",
  "transfer-encoding",
  "keep-alive",
]);

export class Proxy {
  /** The faults of the next requests, in their order. */
  faults: Fault[] = [];
  /** Changes an answer; `undefined` leaves it. It may answer in the node's place: see `before`. */
  onAnswer: (request: Request, answer: Answer) => Answer | undefined = () => undefined;
  /** The body that the node gets instead of a request's. */
  onRequest: (request: Request) => Value = ({ body }) => body;
  /** Changes the bytes of an answer that is no JSON. */
  onBytes: (request: Request, bytes: Uint8Array) => Uint8Array = (_, bytes) => bytes;
  /** Answers in the node's place. */
  before: (request: Request) => Answer | undefined | Promise<Answer | undefined> = () => undefined;
  /** The frames that go to the client instead of this one. */
  onFrame: (frame: Value) => readonly Value[] = (frame) => [frame];
  /** The frame that goes to the node instead of a client's. */
  onClientFrame: (frame: Value) => Value = (frame) => frame;
  /** Nothing gets through. */
  isAway = false;
  readonly requests: Request[] = [];
  readonly #server: Server;
  readonly #sockets = new WebSocketServer({ noServer: true });
  readonly #clients = new Set<WebSocket>();

  private constructor(private readonly target: string) {
    this.#server = createServer((request, response) => {
      this.#pass(request, response).catch(() => response.destroy());
    });
    this.#server.on("upgrade", (request, socket, head) => {
      if (this.isAway) return void socket.destroy();
      this.#sockets.handleUpgrade(request, socket, head, (client) =>
        this.#join(client, request.url!),
      );
    });
  }

  static async start(target: string): Promise<Proxy> {
    const proxy = new Proxy(target);
    await new Promise<void>((resolve) => proxy.#server.listen(0, "127.0.0.1", resolve));
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async #pass(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const parts: Buffer[] = [];
    for await (const part of incoming) parts.push(part as Buffer);
    const bytes = Buffer.concat(parts);
    const isJson = incoming.headers["content-type"]?.startsWith("application/json");
    const body: Value = isJson && bytes.length > 0 ? JSON.parse(bytes.toString()) : null;
    const request = { method: incoming.method!, path: incoming.url!, body };
    this.requests.push(request);
    const fault = this.faults.shift() ?? null;
    const status = this.isAway ? 503 : fault;
    const invented = typeof status === "number" ? { status, body: {} } : await this.before(request);
    if (invented) return write(response, invented);
    const headers = new Headers();
    for (const [name, value] of Object.entries(incoming.headers)) {
      if (value !== undefined && name !== "host" && !HOP_BY_HOP.has(name))
        headers.set(name, String(value));
    }
    const given = new AbortController();
    response.once("close", () => given.abort());
    const { signal } = given;
    const init: RequestInit = { method: request.method, headers, redirect: "manual", signal };
    if (bytes.length > 0) init.body = isJson ? JSON.stringify(this.onRequest(request)) : bytes;
    const answer = await fetch(this.target + request.path, init);
    const text = Buffer.from(await answer.arrayBuffer());
    if (fault === "cut") return void response.destroy();
    for (const [name, value] of answer.headers) {
      if (!HOP_BY_HOP.has(name) && name !== "set-cookie") response.setHeader(name, value);
    }
    response.setHeader("set-cookie", answer.headers.getSetCookie());
    const told = answer.headers.get("content-type")?.includes("json")
      ? this.onAnswer(request, { status: answer.status, body: JSON.parse(text.toString()) })
      : undefined;
    if (told) return write(response, told);
    response.statusCode = answer.status;
    if (answer.headers.get("content-type")?.includes("json")) return void response.end(text);
    response.end(this.onBytes(request, text));
  }

  #join(client: WebSocket, path: string): void {
    const node = new WebSocket(this.target.replace(/^http/, "ws") + path);
    this.#clients.add(client);
    const early: string[] = [];
    client.on("message", (data) => {
      const text = JSON.stringify(this.onClientFrame(JSON.parse(String(data))));
      if (node.readyState === WebSocket.OPEN) node.send(text);
      else early.push(text);
    });
    node.on("open", () => early.splice(0).forEach((text) => node.send(text)));
    node.on("message", (data) => {
      for (const frame of this.onFrame(JSON.parse(String(data)))) this.#send(client, frame);
    });
    node.on("error", () => client.terminate());
    client.on("error", () => node.terminate());
    node.on("close", (code) => closeAs(client, code));
    client.on("close", (code) => {
      this.#clients.delete(client);
      closeAs(node, code);
    });
  }

  #send(client: WebSocket, frame: Value): void {
    if (client.readyState === WebSocket.OPEN) client.send(JSON.stringify(frame));
  }

  /** Says something of its own to every client. */
  say(frame: Value): void {
    for (const client of this.#clients) this.#send(client, frame);
  }

  /** Whether any client is. */
  get isConnected(): boolean {
    return this.#clients.size > 0;
  }

  /** Loses every connection. */
  cut(): void {
    for (const client of this.#clients) client.terminate();
  }

  /** Ends every connection with this code, as the service would. */
  end(code: number): void {
    for (const client of this.#clients) client.close(code);
  }

  close(): void {
    for (const client of this.#clients) client.terminate();
    this.#server.closeAllConnections();
    this.#server.close();
  }
}

function write(response: ServerResponse, { status, body }: Answer): void {
  response.statusCode = status;
  response.setHeader("content-type", "application/json");
  response.end(JSON.stringify(body));
}

/** 1005 and 1006 are said by nobody. */
function closeAs(socket: WebSocket, code: number): void {
  if (code === 1005 || code === 1006) socket.terminate();
  else socket.close(code);
}

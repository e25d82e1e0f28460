// A world that a process can be cut from, as if it were killed.
import type { Agent, AgentOptions } from "@blindpipe/client/agent";
import { WebSocket } from "ws";

type WebSocketFactory = NonNullable<AgentOptions["webSocket"]>;
type WebSocketLike = Awaited<ReturnType<WebSocketFactory>>;

const never = <T>(): Promise<T> => new Promise<T>(() => {});

/**
 * Counts the points at which something is awaited, and dies at one of them: from then on nothing
 * goes out, nothing comes in, and no promise settles.
 */
export class MortalWorld {
  #passed = 0;
  #sockets = new Set<WebSocketLike>();
  isDead = false;
  readonly death: Promise<void>;
  #tell!: () => void;

  constructor(private readonly lastPoint: number) {
    this.death = new Promise((resolve) => (this.#tell = resolve));
  }

  /** An await point. */
  async point(): Promise<void> {
    if (!this.isDead && this.#passed++ === this.lastPoint) this.kill();
    if (this.isDead) await never();
  }

  kill(): void {
    if (this.isDead) return;
    this.isDead = true;
    for (const socket of this.#sockets) (socket as unknown as WebSocket).terminate();
    this.#tell();
  }

  readonly fetch: typeof fetch = async (...parameters) => {
    // The answer to a request that went out may never come.
    await this.point();
    const answer = await fetch(...parameters);
    await this.point();
    return answer;
  };

  readonly webSocket: WebSocketFactory = async (url) => {
    if (this.isDead) return never();
    const socket = new WebSocket(url) as unknown as WebSocketLike;
    this.#sockets.add(socket);
    const send = socket.send.bind(socket);
    socket.send = (text) => {
      if (text.includes('"type":"ack"') && this.#passed++ === this.lastPoint) this.kill();
      if (!this.isDead) send(text);
    };
    return socket;
  };

  /** Starts an agent in this world; resolves when it has died. */
  async run(agent: Agent): Promise<void> {
    void agent.run({ signal: new AbortController().signal }).catch(() => {});
    await this.death;
  }
}

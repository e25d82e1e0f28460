/** The options of an agent. */
import type { JsonObject } from "../e2ee/content.js";
import { AgentKey } from "../e2ee/keys.js";
import type { TrustPolicy } from "../e2ee/trust.js";
import { UsageError } from "../e2ee/errors.js";
import type { Hooks, Logger } from "../hooks.js";
import type { Fetch } from "../transport/http.js";
import type { WebSocketFactory } from "../transport/socket.js";
import type { BusyPolicy } from "./turns.js";
import type { PinStore } from "../stores/pin-store.js";

export interface AgentOptions {
  /** The address of the service. */
  readonly url: string;
  /** Takes `http://` to another machine: anybody on the way reads the token. */
  readonly allowHttp?: boolean | undefined;
  readonly agentId: string;
  /** `hsk_…` */
  readonly token: string;
  /** `bpk_…`, several with commas, newest first. An agent without it needs `plaintext: "allow"`. */
  readonly key?: string | readonly AgentKey[] | undefined;
  /** `allow` handles what comes in clear where nothing was ever encrypted, and answers in clear. */
  readonly plaintext?: "refuse" | "allow" | undefined;
  /** A file's path, or the developer's own store. Without it, each start is a first contact. */
  readonly pins?: string | PinStore | undefined;
  /** Published at the start, if it is not what the service has. */
  readonly manifest?: JsonObject | undefined;
  readonly trust?: TrustPolicy | undefined;
  /** Conversations that are handled at once. */
  readonly concurrency?: number | undefined;
  /** `queue` without it. */
  readonly busyPolicy?: BusyPolicy | undefined;
  /** The age after which a signed message is handled no more, in milliseconds; at most 31 days. */
  readonly maxAge?: number | undefined;
  /** Waits before a failed handler runs again, in milliseconds. */
  readonly retryDelays?: readonly number[] | undefined;
  /** After the last try: count the event as handled, or stop the agent. */
  readonly onDeadLetter?: "skip" | "stop" | undefined;
  readonly hooks?: Partial<Hooks> | undefined;
  /** By default, the console is told of warnings and errors. */
  readonly logger?: Logger | undefined;
  readonly fetch?: Fetch | undefined;
  readonly webSocket?: WebSocketFactory | undefined;
}

export const DEFAULT_RETRY_DELAYS_MS = [1_000, 5_000, 25_000, 125_000];

type Environment = Readonly<Record<string, string | undefined>>;

/** Reads `BLINDPIPE_URL`, `_AGENT_ID`, `_TOKEN`, `_KEY`, `_PLAINTEXT` and `_PINS`. */
export function optionsFromEnv(environment: Environment): AgentOptions {
  const required = (name: string): string => {
    const value = environment[name];
    if (!value) throw new UsageError(`${name} is not set`);
    return value;
  };
  return {
    url: required("BLINDPIPE_URL"),
    agentId: required("BLINDPIPE_AGENT_ID"),
    token: required("BLINDPIPE_TOKEN"),
    key: environment["BLINDPIPE_KEY"] || undefined,
    plaintext: plaintextOf(environment["BLINDPIPE_PLAINTEXT"]),
    pins: environment["BLINDPIPE_PINS"] || undefined,
  };
}

function plaintextOf(value: string | undefined): AgentOptions["plaintext"] {
  if (!value) return undefined;
  if (value === "allow" || value === "refuse") return value;
  throw new UsageError("BLINDPIPE_PLAINTEXT is allow or refuse");
}

/** A variable that is missing or misspelt sends no word in clear. */
export function checkKeyOrPlaintext({ key, plaintext }: AgentOptions): void {
  if ((key !== undefined && key.length > 0) || plaintext === "allow") return;
  throw new UsageError(
    'this agent has no key: set BLINDPIPE_KEY, or plaintext: "allow" (BLINDPIPE_PLAINTEXT=allow)',
  );
}

export function seedsOf(key: AgentOptions["key"]): readonly AgentKey[] {
  if (key === undefined || key.length === 0) return [];
  return typeof key === "string" ? AgentKey.parseAll(key) : key;
}

/** Hooks for the operator of a client. No hook ever carries a secret or a text. */
import { errorName } from "./errors.js";

export interface Hooks {
  connected(): void;
  caught_up(): void;
  disconnected(details: { code: number; holders?: readonly string[] }): void;
  retry(details: { attempt: number; wait_ms: number; route: string }): void;
  rate_limited(details: { scope: string; wait_ms: number }): void;
  undecryptable(details: {
    reason: string;
    /** Null for a piece of a stream. */
    event_id: string | null;
    conversation_id: string | null;
  }): void;
  key_changed(details: {
    type: string;
    principal_id: string;
    key_id: string | null;
    /** Null where it concerns no single conversation. */
    conversation_id: string | null;
  }): void;
  /**
   * The server has refused a fresh secret, and nothing is sent under the one of before: members or
   * keys have changed (`change`), it is too old (`age`), or neither (`none`).
   */
  not_rotated(details: { conversation_id: string; because: "change" | "age" | "none" }): void;
  dead_letter(details: { event_id: string; event: string; error: unknown }): void;
  resync(details: { oldest: string; head: string }): void;
  /** A store could not be read or written. Nothing is acknowledged that it did not keep. */
  store_failed(): void;
}

/** Any logger of the usual four levels. */
export interface Logger {
  debug(message: string, fields?: object): void;
  info(message: string, fields?: object): void;
  warn(message: string, fields?: object): void;
  error(message: string, fields?: object): void;
}

const silent = (): void => {};

/** Without a logger of the program's own, warnings and errors go to the console. */
export const CONSOLE: Logger = {
  debug: silent,
  info: silent,
  warn: (message, fields) => console.warn(`blindpipe: ${message}`, ...(fields ? [fields] : [])),
  error: (message, fields) => console.error(`blindpipe: ${message}`, ...(fields ? [fields] : [])),
};

/** Calls a hook, and keeps its faults away from the client. */
export class HookCaller {
  constructor(
    private readonly hooks: Partial<Hooks>,
    private readonly logger: Logger,
  ) {}

  call<Name extends keyof Hooks>(name: Name, ...details: Parameters<Hooks[Name]>): void {
    this.logger.debug(name, details[0] && withoutErrors(details[0]));
    try {
      (this.hooks[name] as ((...details: unknown[]) => void) | undefined)?.(...details);
    } catch {
      this.logger.warn("a hook has failed", { hook: name });
    }
  }
}

/** A handler's error may quote a message, so only its class is logged. Anything may be thrown. */
function withoutErrors(details: unknown): object {
  const entries = Object.entries(details as object).map(([name, value]) => [
    name,
    name === "error" || value instanceof Error ? errorName(value) : value,
  ]);
  return Object.fromEntries(entries) as object;
}

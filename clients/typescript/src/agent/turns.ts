/** The handlers that run: stopped by people, and told what arrives meanwhile. */
import { idName, isId } from "../e2ee/bytes.js";
import { isSameId } from "../core/opened.js";
import type { EventObject } from "../core/types.js";
import { Ending } from "../transport/wait.js";
import type { Answered } from "./outbox.js";

/**
 * A message that comes while a handler runs in its conversation. `queue`: it waits, or is taken by
 * `Context.steer`. `interrupt`: it stops the handler. `drop`: it is not handled.
 */
export type BusyPolicy = "queue" | "interrupt" | "drop";

export const STOP_EVENT = "turn.stop";
const MESSAGE_EVENT = "message.created";

/** One run of the handlers of an event. */
export class Turn {
  readonly #stopping = new Ending();
  /** Messages of the conversation that came meanwhile. */
  arrived: EventObject[] = [];
  /** Those of them that the handler has taken. */
  readonly taken: { readonly event: EventObject; readonly answered: Answered }[] = [];

  constructor(readonly event: EventObject) {}

  /** Aborts when a person, or a newer message, has stopped it. */
  get stopped(): AbortSignal {
    return this.#stopping.signal;
  }

  get isStopped(): boolean {
    return this.#stopping.hasCome;
  }

  stop(): void {
    this.#stopping.abort();
  }
}

interface Stop {
  readonly seq: number;
  readonly inReplyTo: unknown;
}

/** Whether an event is one of those that were asked to stop. */
function concerns({ seq, inReplyTo }: Stop, event: EventObject): boolean {
  if (event.event !== MESSAGE_EVENT || event.seq >= seq) return false;
  return inReplyTo === undefined || isSameId(event.data["message_id"], inReplyTo);
}

function nameOf({ conversation_id: id }: EventObject): string | null {
  return id && isId(id) ? idName(id) : null;
}

/** The turns of all conversations. */
export class Turns {
  readonly #byConversation = new Map<string, Turn>();
  readonly #stops = new Map<string, Stop>();
  /** Events that are not handled any more: others have handled them, or nobody is to. */
  readonly #done = new Set<string>();

  constructor(private readonly policy: BusyPolicy) {}

  /** Looks at an event before its turn: a stop is heard while handlers run. */
  arrive(event: EventObject): void {
    const name = nameOf(event);
    if (name === null) return;
    const turn = this.#byConversation.get(name);
    if (event.event === STOP_EVENT) {
      const stop = { seq: event.seq, inReplyTo: event.data["in_reply_to"] ?? undefined };
      this.#stops.set(name, stop);
      if (turn && concerns(stop, turn.event)) turn.stop();
    } else if (turn && event.event === MESSAGE_EVENT && !event.data?.["refs"]) {
      this.#arriveBusy(turn, event);
    }
  }

  #arriveBusy(turn: Turn, event: EventObject): void {
    if (this.policy === "queue") turn.arrived.push(event);
    else if (this.policy === "interrupt") turn.stop();
    else this.#done.add(event.event_id);
  }

  /** The turn of an event; null if it is not handled any more. */
  begin(event: EventObject): Turn | null {
    const name = nameOf(event);
    if (name === null) return new Turn(event);
    const stop = this.#stops.get(name);
    if (stop && stop.seq <= event.seq) this.#stops.delete(name);
    if (this.#done.delete(event.event_id) || (stop && concerns(stop, event))) return null;
    const [turn, before] = [new Turn(event), this.#byConversation.get(name)];
    if (before?.event.event_id === event.event_id) {
      // It failed before: what it took then is there again.
      turn.arrived = [...before.taken.map((each) => each.event), ...before.arrived];
    }
    if (event.event === MESSAGE_EVENT) this.#byConversation.set(name, turn);
    return turn;
  }

  /** The turn was handled, and so were the messages that it took. */
  end(turn: Turn): void {
    const name = nameOf(turn.event);
    if (name !== null && this.#byConversation.get(name) === turn) this.#byConversation.delete(name);
    for (const { event } of turn.taken) this.#done.add(event.event_id);
  }
}

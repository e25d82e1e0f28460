/** The parts of an agent that a context needs. */
import type { Session } from "../core/session.js";
import type { Http } from "../transport/http.js";
import type { Socket } from "../transport/socket.js";
import type { Approvals } from "./approvals.js";
import type { Outbox } from "./outbox.js";
import type { ToolCalls } from "./tool-calls.js";

export interface AgentParts {
  readonly agentId: string;
  readonly http: Http;
  readonly session: Session;
  readonly outbox: Outbox;
  readonly toolCalls: ToolCalls;
  readonly approvals: Approvals;
  readonly socket: () => Socket | null;
}

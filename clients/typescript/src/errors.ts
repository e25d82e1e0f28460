/** Errors of the service. A class per code is generated, so that nobody needs to parse text. */

/** The parts of an error of the service. */
export interface ErrorDetails {
  readonly code: string;
  readonly status: number;
  readonly message: string;
  readonly params: Readonly<Record<string, unknown>>;
  readonly requestId: string | null;
}

/** The base of every error that comes from the service or the connection to it. */
export class BlindpipeError extends Error {
  override readonly name: string = "BlindpipeError";
  readonly code: string;
  /** HTTP status; 0 where no answer came. */
  readonly status: number;
  readonly params: Readonly<Record<string, unknown>>;
  readonly requestId: string | null;

  constructor(details: ErrorDetails, options?: ErrorOptions) {
    super(details.message, options);
    this.code = details.code;
    this.status = details.status;
    this.params = details.params;
    this.requestId = details.requestId;
  }

  /** Whether the same request may succeed later without a change. */
  get retryable(): boolean {
    return this.params["retryable"] === true;
  }
}

/** A refusal by the service. Unknown codes are of this class itself. */
export class ApiError extends BlindpipeError {
  override readonly name: string = "ApiError";
}

function local(code: string, message: string, retryable: boolean): ErrorDetails {
  return { code, status: 0, message, params: { retryable }, requestId: null };
}

/** No answer came. For a send with an id, a repeat is safe. */
export class ConnectionLost extends BlindpipeError {
  override readonly name = "ConnectionLost";
  constructor(message = "the connection was lost", options?: ErrorOptions) {
    super(local("CONNECTION_LOST", message, true), options);
  }
}

/** The client was closed, or the service ended it for good. */
export class Closed extends BlindpipeError {
  override readonly name = "Closed";
  constructor(
    message = "closed",
    /** The close code of the socket, if one said so. */
    readonly closeCode: number | null = null,
  ) {
    super(local("CLOSED", message, false));
  }
}

/** An earlier message has this id, and it is not one's own. */
export class IdConflict extends BlindpipeError {
  override readonly name = "IdConflict";
  constructor() {
    super(local("ID_CONFLICT", "another message has this id", false));
  }
}

const MAX_CAUSES = 8;
/** Timeouts and refusals of a service that is away or busy, on its way or behind a proxy. */
const OUTAGE_STATUSES = [408, 429, 502, 503, 504];

/**
 * Whether the service was away or busy, also as the cause of another error: the same may succeed
 * later without a change.
 */
export function isOutage(error: unknown): boolean {
  let found = error;
  for (let depth = 0; found instanceof Error && depth < MAX_CAUSES; depth++) {
    if (found instanceof BlindpipeError) {
      return found.retryable || OUTAGE_STATUSES.includes(found.status);
    }
    found = found.cause;
  }
  return false;
}

/** What a log says of an error: its text may hold a payload, and anything may be thrown. */
export function errorName(error: unknown): string {
  return error instanceof Error ? error.name : typeof error;
}

/** Neither this device's records nor the person allow a tool request. Nothing has run. */
export class NotApproved extends BlindpipeError {
  override readonly name = "NotApproved";
  constructor(message = "nobody has approved this request on this device") {
    super(local("NOT_APPROVED", message, false));
  }
}

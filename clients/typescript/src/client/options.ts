/** The options of a person's client. */
import type { EpochMarks } from "../e2ee/room.js";
import type { StoredPins, TrustPolicy } from "../e2ee/trust.js";
import type { Hooks, Logger } from "../hooks.js";
import type { Store } from "../stores/store.js";
import type { Fetch } from "../transport/http.js";
import type { WebSocketFactory } from "../transport/socket.js";
import type { StoredSession } from "./account.js";
import type { ConsentStore, DeviceTool } from "./tool-requests.js";

export interface ClientOptions {
  readonly url: string;
  /** Takes `http://` to another machine: anybody on the way reads passwords and tokens. */
  readonly allowHttp?: boolean | undefined;
  /** This device's own id, which must outlive a reinstallation; a new one without it. */
  readonly deviceId?: string | undefined;
  readonly deviceName?: string | undefined;
  readonly platform?: string | undefined;
  readonly trust?: TrustPolicy | undefined;
  /**
   * Keeps what must outlive a restart: pins, marks, consents and the messages that were shown, and in
   * files also the sign-in and the keys. Without it, each start is a first contact.
   */
  readonly store?: Store | undefined;
  /** Pins and marks of an earlier run, where there is no `store`. */
  readonly pins?: StoredPins | undefined;
  readonly marks?: ReadonlyMap<string, EpochMarks> | undefined;
  /** Pins or marks have changed: keep what `trust.store()` and `session.marks()` give now. */
  readonly onTrustChanged?: (() => void) | undefined;
  /** The sign-in, or its renewal: keep it, and `Client.resume` goes on with it. */
  readonly onSession?: ((session: StoredSession) => unknown) | undefined;
  /** The tools of this device, by name. A request for any other is answered as `unknown_tool`. */
  readonly tools?: Readonly<Record<string, DeviceTool>> | undefined;
  /**
   * Sends tell the service keyed hashes of their words, and `Conversation.search` finds them. Then the
   * service sees which messages of a conversation share a word, and how often; off by default.
   */
  readonly searchable?: boolean | undefined;
  /** Keeps which requests were begun and approved, where there is no `store`. */
  readonly consents?: ConsentStore | undefined;
  readonly hooks?: Partial<Hooks> | undefined;
  /** By default, the console is told of warnings and errors. */
  readonly logger?: Logger | undefined;
  readonly fetch?: Fetch | undefined;
  readonly webSocket?: WebSocketFactory | undefined;
}

export interface PasswordLogin {
  readonly email: string;
  readonly password: string;
  readonly turnstileToken: string;
}

/** A person's session: sign-in, the access token of the moment, and its renewal. */
import { type Bytes, equal, random } from "../e2ee/bytes.js";
import { sha256 } from "../e2ee/primitives.js";
import { BlindpipeError } from "../errors.js";
import { type HookCaller } from "../hooks.js";
import type { SignedIn } from "../core/types.js";
import { type Fetch, Http } from "../transport/http.js";

export interface SignInDevice {
  /** The device's own id, which must outlive a reinstallation. */
  readonly deviceId?: string | undefined;
  readonly deviceName?: string | undefined;
  readonly platform?: string | undefined;
}

/** A sign-in that a later run goes on with. Keep it as you keep a password. */
export interface StoredSession {
  readonly userId: string;
  readonly deviceId: string;
  /** Good for one renewal: the newest one counts. Null where a browser keeps the cookie itself. */
  readonly cookie: string | null;
}

/** A token is renewed this long before its end. */
const RENEW_BEFORE_MS = 30_000;

export class Account {
  readonly http: Http;
  #accessToken: string | null = null;
  #expiresAt = 0;
  /** Browsers keep the cookie themselves; elsewhere it is kept here. */
  #cookie: string | null = null;
  #renewal: Promise<boolean> | null = null;
  /** The service has not been asked yet whether the sign-in of an earlier run goes on. */
  #isUnasked = false;
  #signedIn: SignedIn | null = null;
  /** Person and device, as the sign-in or a renewal told. */
  #known: Pick<SignedIn, "user_id" | "device_id"> | null = null;
  readonly #salt = random(16);
  /** The hash of the password of the sign-in. */
  #password: Bytes | null = null;

  constructor(
    url: string,
    private readonly fetch: Fetch,
    hooks: HookCaller,
    private readonly onSession: (session: StoredSession) => unknown = () => {},
  ) {
    this.http = new Http({
      url,
      fetch: (input, init) => this.#fetch(input, init),
      hooks,
      token: () => this.token(),
      renew: () => this.renew(),
    });
  }

  async #fetch(input: Parameters<Fetch>[0], init: RequestInit = {}): Promise<Response> {
    const isAuth = new URL(String(input)).pathname.startsWith("/auth/");
    if (!isAuth) return this.fetch(input, init);
    const headers = new Headers(init.headers);
    if (this.#cookie) headers.set("cookie", this.#cookie);
    const response = await this.fetch(input, { ...init, headers, credentials: "include" });
    for (const cookie of response.headers.getSetCookie?.() ?? []) {
      const [pair] = cookie.split(";");
      if (pair?.startsWith("refresh_token=")) this.#cookie = pair;
    }
    return response;
  }

  get userId(): string {
    return this.#identity().user_id;
  }

  get deviceId(): string {
    return this.#identity().device_id;
  }

  get keyBackup(): SignedIn["key_backup"] {
    return this.#current().key_backup;
  }

  #identity(): Pick<SignedIn, "user_id" | "device_id"> {
    if (!this.#known) throw new Error("nobody is signed in");
    return this.#known;
  }

  #current(): SignedIn {
    if (!this.#signedIn) throw new Error("nobody is signed in");
    return this.#signedIn;
  }

  /** Any of the sign-ins: they all answer alike. */
  async signIn(
    path: string,
    body: { readonly account_password?: string },
    device: SignInDevice,
  ): Promise<void> {
    const fields = {
      ...(device.deviceId ? { device_id: device.deviceId } : {}),
      ...(device.deviceName ? { device_name: device.deviceName } : {}),
      ...(device.platform ? { platform: device.platform } : {}),
    };
    const signedIn = await this.http.data<SignedIn>({
      method: "POST",
      path,
      body: { ...body, ...fields },
      isPublic: true,
    });
    const { account_password: password } = body;
    if (password !== undefined) this.#password = await this.#named(password);
    this.#signedIn = signedIn;
    this.#known = signedIn;
    await this.#take(signedIn.access_token, signedIn.expires_in_seconds);
  }

  #named(password: string): Promise<Bytes> {
    return sha256(this.#salt, new TextEncoder().encode(password.normalize("NFKC")));
  }

  /** Whether the sign-in was with this password, which the server has seen. */
  async isPassword(text: string): Promise<boolean> {
    return this.#password !== null && equal(await this.#named(text), this.#password);
  }

  /** Goes on with the sign-in of an earlier run; false if it has ended. */
  async resume(session: StoredSession | null): Promise<boolean> {
    this.#cookie = session?.cookie ?? null;
    this.#known = session && { user_id: session.userId, device_id: session.deviceId };
    return this.renew();
  }

  /** Goes on with a sign-in that the first call renews. */
  resumeOffline(session: StoredSession): void {
    this.#cookie = session.cookie;
    this.#known = { user_id: session.userId, device_id: session.deviceId };
    this.#isUnasked = true;
  }

  /** A cookie is good once, so the next one is kept before the token is used. */
  async #take(token: string, expiresInSeconds: number): Promise<void> {
    await this.onSession({ userId: this.userId, deviceId: this.deviceId, cookie: this.#cookie });
    this.#accessToken = token;
    this.#expiresAt = Date.now() + expiresInSeconds * 1000;
  }

  async token(): Promise<string | null> {
    if (this.#isUnasked) {
      await this.renew();
    } else if (this.#accessToken && Date.now() > this.#expiresAt - RENEW_BEFORE_MS) {
      await this.renew().catch((error: unknown) => {
        // The present token is good for as long as it lasts.
        if (Date.now() >= this.#expiresAt) throw error;
      });
    }
    return this.#accessToken;
  }

  /** A new access token; false if the session has ended. Throws where the service cannot say. */
  renew(): Promise<boolean> {
    this.#renewal ??= alone(() => this.#refresh()).finally(() => (this.#renewal = null));
    return this.#renewal;
  }

  async #refresh(): Promise<boolean> {
    try {
      const fresh = await this.http.data<{
        access_token: string;
        expires_in_seconds: number;
        user_id: string;
        device_id: string;
      }>({ method: "POST", path: "/auth/refresh", isPublic: true, repeatable: true });
      this.#isUnasked = false;
      // A page of a sibling domain may have planted the cookie of another account.
      if (this.#known && fresh.user_id !== this.#known.user_id) return false;
      this.#known ??= fresh;
      await this.#take(fresh.access_token, fresh.expires_in_seconds);
      return true;
    } catch (error) {
      if (error instanceof BlindpipeError && error.status === 401) {
        this.#isUnasked = false;
        return false;
      }
      throw error;
    }
  }

  async logout(): Promise<void> {
    await this.http.data({ method: "POST", path: "/auth/logout", isPublic: true });
    this.#accessToken = null;
    this.#cookie = null;
  }

  toJSON(): string {
    return "Account";
  }
}

/** The tabs of a browser share the cookie, so one of them renews at a time. */
function alone<T>(renew: () => Promise<T>): Promise<T> {
  const locks = (globalThis as { navigator?: { locks?: Locks } }).navigator?.locks;
  return locks ? locks.request("blindpipe.refresh", renew) : renew();
}

/** The part of the Web Locks API that is used; Node has none. */
interface Locks {
  request<T>(name: string, run: () => Promise<T>): Promise<T>;
}

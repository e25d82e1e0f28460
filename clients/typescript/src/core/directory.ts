/** Keys of other principals, from the server into the pins. */
import { fromBase64, fromHex } from "../e2ee/bytes.js";
import { type Principal, principalName } from "../e2ee/keys.js";
import type { DirectoryKey, Notice, Trust } from "../e2ee/trust.js";
import { BlindpipeError } from "../errors.js";
import type { Http } from "../transport/http.js";
import type { AgentKeys, KeyDirectory } from "./types.js";

/** A key as any of the directories shows it. */
interface ShownKey {
  readonly device_id?: string | null;
  readonly public_key: string;
  readonly signing_public_key: string;
  readonly schemes?: readonly string[] | null;
  readonly introduction?: { readonly by_key_id: string; readonly signature: string } | null;
  readonly retired_at?: string | null;
  readonly valid_until?: string | null;
}

interface ShownRecipient {
  readonly principal_type: "user" | "agent";
  readonly principal_id: string;
  readonly visibility?: "addressed" | "all" | null;
  readonly list_version: number;
  readonly devices: readonly ShownKey[];
}

function directoryKey(shown: ShownKey): DirectoryKey {
  const introduction = shown.introduction
    ? {
        byKeyId: fromHex(shown.introduction.by_key_id),
        signature: fromBase64(shown.introduction.signature),
      }
    : undefined;
  const end = shown.retired_at ?? shown.valid_until;
  return {
    deviceId: shown.device_id ?? undefined,
    publicKey: fromBase64(shown.public_key),
    signingPublicKey: fromBase64(shown.signing_public_key),
    schemes: shown.schemes ?? undefined,
    introduction,
    // The end of a replaced key's grace may lie ahead; until then it signs.
    retiredAt: end == null ? undefined : Date.parse(end),
  };
}

/** A member's current keys, as the server names the recipients of a rotation. */
export interface Recipient {
  readonly principal: Principal;
  readonly visibility: "addressed" | "all" | null;
  readonly keys: readonly DirectoryKey[];
}

const RECIPIENTS_PAGE_MEMBERS = 100;
/** Lists that events ask for and that are read at once. */
const MAX_CONCURRENT_LISTS = 8;

/** A list that is being read because of an event. */
interface Reading {
  /** It has changed, or was read otherwise, since this reading began. */
  isOvertaken: boolean;
  readonly ended: Promise<void>;
}

export class Directory {
  /** By principal. */
  readonly #readings = new Map<string, Reading>();
  #running = 0;
  readonly #waiting: (() => void)[] = [];

  constructor(
    private readonly http: Http,
    private readonly pins: Trust,
    /** Called after each list that was read, with what is new in it. */
    private readonly onRead: (notices: readonly Notice[]) => void,
  ) {}

  /** Reads the keys of all members, and pins what is new. */
  async recipients(conversationId: string): Promise<Recipient[]> {
    const found: Recipient[] = [];
    let cursor: string | undefined;
    do {
      const page = await this.#page(conversationId, { limit: RECIPIENTS_PAGE_MEMBERS, cursor });
      for (const shown of page.members) {
        const principal: Principal = { type: shown.principal_type, id: shown.principal_id };
        await this.#pin(principal, shown.devices);
        const keys = shown.devices.filter(isCurrent).map(directoryKey);
        found.push({ principal, visibility: shown.visibility ?? null, keys });
      }
      cursor = page.next;
    } while (cursor);
    return found;
  }

  async #page(
    conversationId: string,
    query: Record<string, string | number | undefined>,
  ): Promise<{ members: readonly ShownRecipient[]; next: string | undefined }> {
    const path = `/keys/groups/${conversationId}/recipients`;
    const answer = await this.http.call<{ members: ShownRecipient[]; next_cursor?: string | null }>(
      {
        method: "GET",
        path,
        query,
      },
    );
    // The cursor stands beside `data` or in it.
    const next = answer.nextCursor ?? answer.data.next_cursor ?? undefined;
    return { members: answer.data.members, next };
  }

  /** Reads the keys of somebody who spoke in a conversation and may have left it. */
  async speaker(conversationId: string, principal: Principal): Promise<void> {
    try {
      const page = await this.#page(conversationId, { principal_id: principal.id });
      for (const shown of page.members) await this.#pin(principal, shown.devices);
    } catch (error) {
      if (!isMissing(error)) throw error;
    }
  }

  /** Reads the keys of a single principal, and pins what is new. */
  async refresh(principal: Principal): Promise<void> {
    try {
      await this.#pin(principal, await this.#read(principal));
    } catch (error) {
      if (!isMissing(error)) throw error;
    }
  }

  /** As `refresh`, for an event. A list that changes meanwhile is read once more. */
  changed(principal: Principal): Promise<void> {
    const name = principalName(principal);
    const running = this.#readings.get(name);
    if (running) {
      running.isOvertaken = true;
      return running.ended;
    }
    const ended = this.#inTurn(() => this.#readNewest(principal));
    this.#readings.set(name, { isOvertaken: false, ended });
    return ended.finally(() => this.#readings.delete(name));
  }

  /** An answer that is older than another one would take back what that one brought. */
  async #readNewest(principal: Principal): Promise<void> {
    const reading = this.#readings.get(principalName(principal))!;
    do {
      reading.isOvertaken = false;
      let keys: readonly ShownKey[];
      try {
        keys = await this.#read(principal);
      } catch (error) {
        if (isMissing(error)) return;
        throw error;
      }
      if (!reading.isOvertaken) await this.#take(principal, keys);
    } while (reading.isOvertaken);
  }

  async #inTurn(read: () => Promise<void>): Promise<void> {
    if (this.#running >= MAX_CONCURRENT_LISTS) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    } else this.#running += 1;
    try {
      // The caller notes the reading before it begins.
      await Promise.resolve();
      await read();
    } finally {
      const next = this.#waiting.shift();
      if (next) next();
      else this.#running -= 1;
    }
  }

  async #read(principal: Principal): Promise<readonly ShownKey[]> {
    if (principal.type === "user") {
      const path = `/keys/users/${principal.id}/devices`;
      return (await this.http.data<KeyDirectory>({ method: "GET", path })).devices;
    }
    const path = `/agents/${principal.id}/keys`;
    return (await this.http.data<AgentKeys>({ method: "GET", path })).keys;
  }

  async #pin(principal: Principal, keys: readonly ShownKey[]): Promise<void> {
    const reading = this.#readings.get(principalName(principal));
    if (reading) reading.isOvertaken = true;
    await this.#take(principal, keys);
  }

  async #take(principal: Principal, keys: readonly ShownKey[]): Promise<void> {
    this.onRead(await this.pins.directory(principal, keys.map(directoryKey)));
  }
}

/** The directory keeps retired keys for old signatures; nothing is given to them. */
function isCurrent(key: ShownKey): boolean {
  return !key.retired_at && !key.valid_until;
}

function isMissing(error: unknown): boolean {
  return error instanceof BlindpipeError && error.status === 404;
}

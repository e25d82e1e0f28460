/**
 * Keys of other principals, from the server into the pins.
 *
 * This file alone knows what a server has of the additions for clients that encrypt. A server with
 * `GET /keys/groups/:id/recipients` answers all members' keys at once, with introductions and
 * schemes; one without is asked principal by principal.
 */
import { fromBase64, fromHex } from "../e2ee/bytes.js";
import type { Principal } from "../e2ee/keys.js";
import type { DirectoryKey, Notice, Pins } from "../e2ee/trust.js";
import { BlindpipeError } from "../errors.js";
import type { Http } from "../transport/http.js";
import type { AgentKeys, KeyDirectory, Member } from "./types.js";

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
  return {
    deviceId: shown.device_id ?? undefined,
    publicKey: fromBase64(shown.public_key),
    signingPublicKey: fromBase64(shown.signing_public_key),
    schemes: shown.schemes ?? undefined,
    introduction,
    // The end of a replaced key's grace may lie ahead; until then it signs.
    retired: shown.retired_at != null && Date.parse(shown.retired_at) <= Date.now(),
    retiredAt: shown.retired_at == null ? undefined : Date.parse(shown.retired_at),
  };
}

/** A member's current keys, as the server names the recipients of a rotation. */
export interface Recipient {
  readonly principal: Principal;
  readonly visibility: "addressed" | "all" | null;
  readonly keys: readonly DirectoryKey[];
}

const PAGE_MEMBERS = 100;

export class Directory {
  /** Whether the server answers all members at once; null until it was asked. */
  #hasRecipients: boolean | null = null;

  constructor(
    private readonly http: Http,
    private readonly pins: Pins,
    private readonly onNotice: (notice: Notice) => void,
  ) {}

  /** Reads the keys of all members, and pins what is new. */
  async recipients(
    conversationId: string,
    members: readonly Member[],
  ): Promise<Recipient[]> {
    const found = (await this.#atOnce(conversationId)) ?? (await this.#oneByOne(members));
    for (const { shown, principal } of found) {
      await this.#pin(principal, shown.devices.map(directoryKey));
    }
    return found.map(({ shown, principal }) => ({
      principal,
      visibility: shown.visibility ?? null,
      keys: shown.devices.filter(isCurrent).map(directoryKey),
    }));
  }

  async #atOnce(
    conversationId: string,
  ): Promise<{ shown: ShownRecipient; principal: Principal }[] | null> {
    if (this.#hasRecipients === false) return null;
    const all: ShownRecipient[] = [];
    let cursor: string | undefined;
    do {
      try {
        const page = await this.#page(conversationId, { limit: PAGE_MEMBERS, cursor });
        all.push(...page.members);
        cursor = page.next;
      } catch (error) {
        if (!isMissing(error)) throw error;
        this.#hasRecipients ??= false;
        return null;
      }
    } while (cursor);
    this.#hasRecipients = true;
    return all.map((shown) => ({
      shown,
      principal: { type: shown.principal_type, id: shown.principal_id },
    }));
  }

  async #page(
    conversationId: string,
    query: Record<string, string | number | undefined>,
  ): Promise<{ members: ShownRecipient[]; next: string | undefined }> {
    const path = `/keys/groups/${conversationId}/recipients`;
    const answer = await this.http.call<{ members: ShownRecipient[]; next_cursor?: string | null }>({
      method: "GET",
      path,
      query,
    });
    // The cursor stands beside `data` or in it.
    const next = answer.nextCursor ?? answer.data.next_cursor ?? undefined;
    return { members: answer.data.members, next };
  }

  /** Reads the keys of somebody who spoke in a conversation and may have left it. */
  async speaker(
    conversationId: string,
    principal: Principal,
  ): Promise<void> {
    if (this.#hasRecipients !== true) return this.refresh(principal);
    const page = await this.#page(conversationId, { principal_id: principal.id }).catch(
      (error: unknown) => {
        if (isMissing(error)) return { members: [] };
        throw error;
      },
    );
    for (const shown of page.members) {
      await this.#pin(principal, shown.devices.map(directoryKey));
    }
  }

  async #oneByOne(
    members: readonly Member[],
  ): Promise<{ shown: ShownRecipient; principal: Principal }[]> {
    const found = [];
    for (const member of members) {
      const principal = { type: member.principal_type, id: member.principal_id } as const;
      const list = await this.#read(principal);
      if (!list) continue;
      const shown = {
        principal_type: principal.type,
        principal_id: principal.id,
        visibility: member.visibility ?? null,
        ...list,
      };
      found.push({ shown, principal });
    }
    return found;
  }

  /** Reads the keys of a single principal, and pins what is new. */
  async refresh(principal: Principal): Promise<void> {
    const list = await this.#read(principal);
    if (!list) return;
    await this.#pin(principal, list.devices.map(directoryKey));
  }

  async #read(
    principal: Principal,
  ): Promise<{ list_version: number; devices: readonly ShownKey[] } | null> {
    try {
      if (principal.type === "user") {
        const path = `/keys/users/${principal.id}/devices`;
        return await this.http.data<KeyDirectory>({ method: "GET", path });
      }
      const path = `/agents/${principal.id}/keys`;
      const list = await this.http.data<AgentKeys & { list_version?: number }>({ method: "GET", path });
      return { list_version: list.list_version ?? 0, devices: list.keys };
    } catch (error) {
      if (isMissing(error)) return null;
      throw error;
    }
  }

  async #pin(
    principal: Principal,
    keys: readonly DirectoryKey[],
  ): Promise<void> {
    // A server of before schemes were shown says nothing of them: keys alone then mean `bp1`.
    const isTold = this.#hasRecipients === true;
    const spoken = keys.map((key) => (key.schemes || isTold ? key : { ...key, schemes: ["bp1"] }));
    const notices = await this.pins.directory(principal, spoken);
    notices.forEach((notice) => this.onNotice(notice));
  }
}

/** The directory keeps retired keys for old signatures; nothing is given to them. */
function isCurrent(key: ShownKey): boolean {
  return !key.retired_at && !key.valid_until;
}

function isMissing(error: unknown): boolean {
  return error instanceof BlindpipeError && error.status === 404;
}

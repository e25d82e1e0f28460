/** Calls that concern the account: profile, passkeys, relations, blocks, shares, limits, search. */
import { UsageError } from "../e2ee/errors.js";
import type { components } from "../generated/openapi.js";
import type { Call, Http } from "../transport/http.js";

type Schemas = components["schemas"];

export interface ShareOptions {
  readonly expiresAt: Date;
  /** The link leads to the ciphertext of this file. */
  readonly fileId?: string;
  /** The link leads to this agent; without either, to this person. */
  readonly agentId?: string;
  readonly maxAccessCount?: number;
}

export interface RequestOptions {
  readonly body?: object;
  readonly query?: Readonly<Record<string, string | number | undefined>>;
}

/** Any call of the API; answers all fields of the answer. */
export async function request<T>(
  http: Http,
  method: Call["method"],
  path: string,
  options: RequestOptions = {},
): Promise<T> {
  // Without the slash, the path could lead the token to another host.
  if (!path.startsWith("/")) throw new UsageError("a path begins with /");
  return (await http.call<unknown>({ method, path, ...options })).body as T;
}

/** The calls of a person that need no keys. */
export abstract class AccountCalls {
  protected abstract get http(): Http;

  /** Any call of the API in this person's name; answers all fields of the answer. */
  request<T = unknown>(
    method: Call["method"],
    path: string,
    options: RequestOptions = {},
  ): Promise<T> {
    return request<T>(this.http, method, path, options);
  }

  #data<T>(method: Call["method"], path: string, body?: object): Promise<T> {
    return this.http.data<T>({ method, path, ...(body ? { body } : {}) });
  }

  /** The person's own account. */
  profile(): Promise<Schemas["Account"]> {
    return this.#data("GET", "/users/me");
  }

  /** Changes the name that others see, or the language of mails. */
  updateProfile(changes: {
    readonly display_name?: string;
    readonly device_locale?: string;
  }): Promise<Schemas["Account"]> {
    return this.#data("PATCH", "/users/me", changes);
  }

  /** Another password for the account. It protects no keys. */
  changePassword(currentPassword: string, newPassword: string): Promise<unknown> {
    const body = { current_password: currentPassword, new_account_password: newPassword };
    return this.#data("POST", "/users/me/password", body);
  }

  /** Mails a code to the new address. It needs a sign-in of the last 10 minutes. */
  changeEmail(email: string): Promise<unknown> {
    return this.#data("POST", "/users/me/email", { email });
  }

  /** Takes the new address, with the code that was mailed there. */
  confirmEmail(email: string, code: string): Promise<Schemas["Account"]> {
    return this.#data("POST", "/users/me/email/confirm", { email, code });
  }

  /** Deletes the account with all that is its own, for good. */
  deleteAccount(): Promise<unknown> {
    return this.#data("DELETE", "/users/me");
  }

  /** The passkeys of this account. */
  passkeys(): AsyncGenerator<Schemas["Passkey"]> {
    return this.http.pages<Schemas["Passkey"]>("/users/me/passkeys");
  }

  /**
   * The challenge of a new passkey; `public_key` is for `navigator.credentials.create`. It needs a
   * sign-in of the last 10 minutes.
   */
  beginPasskey(): Promise<Schemas["EnrolmentChallenge"]> {
    return this.#data("POST", "/users/me/passkeys/begin");
  }

  /** Adds the passkey that answers a challenge, as WebAuthn's JSON. */
  addPasskey(
    challengeId: string,
    credential: unknown,
    name?: string,
  ): Promise<Schemas["EnrolledPasskey"]> {
    const body = { challenge_id: challengeId, credential, ...(name ? { name } : {}) };
    return this.#data("POST", "/users/me/passkeys/complete", body);
  }

  /** Deletes a passkey. */
  deletePasskey(passkeyId: string): Promise<unknown> {
    return this.#data("DELETE", `/users/me/passkeys/${passkeyId}`);
  }

  /** The agents that may write to this person. */
  relations(): AsyncGenerator<Schemas["Relation"]> {
    return this.http.pages<Schemas["Relation"]>("/relations");
  }

  /** Ends the relation with an agent at once. */
  revokeRelation(relationId: string): Promise<Schemas["Relation"]> {
    return this.#data("DELETE", `/relations/${relationId}`);
  }

  /** The people and agents that this person has blocked. */
  blocks(): AsyncGenerator<Schemas["Block"]> {
    return this.http.pages<Schemas["Block"]>("/users/me/blocks");
  }

  /** Keeps somebody from opening conversations with this person. */
  block(principalId: string): Promise<Schemas["Blocked"]> {
    return this.#data("PUT", `/users/me/blocks/${principalId}`);
  }

  /** Takes a block back. */
  unblock(principalId: string): Promise<unknown> {
    return this.#data("DELETE", `/users/me/blocks/${principalId}`);
  }

  /** Makes a link to a file's ciphertext, to an agent, or to this person. */
  share(options: ShareOptions): Promise<Schemas["CreatedShare"]> {
    const { expiresAt, fileId, agentId, maxAccessCount } = options;
    return this.#data("POST", "/shares", {
      expires_at: expiresAt.toISOString(),
      ...(fileId ? { file_id: fileId } : {}),
      ...(agentId ? { agent_id: agentId } : {}),
      ...(fileId || agentId ? {} : { contact: true }),
      ...(maxAccessCount === undefined ? {} : { max_access_count: maxAccessCount }),
    });
  }

  /** The card behind a link, of anybody's share. It counts as an access. */
  openShare(shareId: string): Promise<Schemas["ShareCard"]> {
    return this.#data("GET", `/share/${shareId}`);
  }

  /** Ends a link. */
  revokeShare(shareId: string): Promise<unknown> {
    return this.#data("DELETE", `/shares/${shareId}`);
  }

  /** Deletes the bytes of a file: one's own, or of a group that one looks after. */
  deleteObject(objectKey: string): Promise<Schemas["DeletedObject"]> {
    return this.#data("DELETE", `/objects/${objectKey}`);
  }

  /** The versions of the interface that the service serves, and its own. */
  version(): Promise<Schemas["Version"]> {
    return this.#data("GET", "/version");
  }

  /** Every limit of this person, and the bytes of the account. */
  limits(): Promise<Schemas["Buckets"]> {
    return this.request("GET", "/limits");
  }

  /** The reads of this person's data by agents, the newest first. */
  accessLog(
    of: { readonly agentId?: string; readonly conversationId?: string } = {},
  ): AsyncGenerator<Schemas["Access"]> {
    const query = { agent_id: of.agentId, conversation_id: of.conversationId };
    return this.http.pages<Schemas["Access"]>("/grants/access-log", query);
  }

  /**
   * What the service finds by a name; messages by the `searchTokens` of their sends, for a program
   * that makes its own. It reads no message. `Conversation.search` finds words.
   */
  search(
    words: string | null,
    options: { readonly tokens?: readonly string[]; readonly types?: readonly string[] } = {},
  ): AsyncGenerator<Schemas["SearchHit"]> {
    const { tokens, types } = options;
    return this.http.pages<Schemas["SearchHit"]>("/search", {
      q: words ?? undefined,
      tokens: tokens?.length ? tokens.join(",") : undefined,
      types: types?.length ? types.join(",") : undefined,
    });
  }
}

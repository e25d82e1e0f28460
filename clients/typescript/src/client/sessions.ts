/** The sessions of a person, and the undo of what one has added: for the time after a theft. */
import type { SessionChange, SessionInfo } from "../core/types.js";
import type { Account } from "./account.js";

export class Sessions {
  constructor(private readonly account: Account) {}

  /** All sessions, newest first, with those that ended within 30 days. */
  async list(): Promise<SessionInfo[]> {
    const sessions: SessionInfo[] = [];
    const pages = this.account.http.pages<SessionInfo>("/users/me/sessions");
    for await (const session of pages) sessions.push(session);
    return sessions;
  }

  /** What a session has added and is still there: agents, tokens, webhooks, relations, and more. */
  async changes(sessionId: string): Promise<SessionChange[]> {
    const changes: SessionChange[] = [];
    const pages = this.account.http.pages<SessionChange>(`/users/me/sessions/${sessionId}/changes`);
    for await (const change of pages) changes.push(change);
    return changes;
  }

  /**
   * Undoes what a session has added, also after its end: the changes with these ids, or all. Answers
   * what this call has undone.
   */
  async undo(sessionId: string, ids?: readonly string[]): Promise<readonly SessionChange[]> {
    const { undone } = await this.account.http.data<{ undone: SessionChange[] }>({
      method: "POST",
      path: `/users/me/sessions/${sessionId}/undo`,
      body: ids ? { ids } : {},
      // Nothing is undone twice.
      repeatable: true,
    });
    return undone;
  }
}

/** A proof of identity. A passkey's answers `POST /auth/passkey/begin`. */
export type Proof =
  | { readonly accountPassword: string }
  | { readonly code: string }
  | { readonly challengeId: string; readonly credential: unknown };

/** The body of the proof on the wire. */
export function proofBody(proof: Proof): object {
  if ("accountPassword" in proof) return { account_password: proof.accountPassword };
  if ("code" in proof) return { code: proof.code };
  return { challenge_id: proof.challengeId, credential: proof.credential };
}

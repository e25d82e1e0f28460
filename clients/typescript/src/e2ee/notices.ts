/** Notices: the things that a person is told about keys, members and messages. */
import { type Principal, principalName } from "./keys.js";

/** In the order in which notices stand. */
const NOTICE_KINDS = [
  "introduced_key",
  "waiting_key",
  "unusable_key",
  "retired_key",
  "returned_key",
  "own_list_key",
  "link_retired",
  "member_added",
  "member_removed",
  "agent_sees_all",
  "not_member",
  "other_secret_before",
  "other_secret",
  "other_time",
  "not_encrypted",
  "no_quote",
] as const;

export type NoticeKind = (typeof NOTICE_KINDS)[number];

/** Something that the person is told. */
export interface Notice {
  readonly kind: NoticeKind;
  readonly about: Principal;
  readonly keyId: string | null;
}

export function notice(kind: NoticeKind, about: Principal, id: string | null = null): Notice {
  return { kind, about, keyId: id };
}

export function sortNotices(notices: Notice[]): Notice[] {
  const name = (one: Notice): string => `${principalName(one.about)}${one.keyId ?? ""}`;
  const rank = (one: Notice): number => NOTICE_KINDS.indexOf(one.kind);
  return notices.sort(
    (one, other) => rank(one) - rank(other) || (name(one) < name(other) ? -1 : 1),
  );
}

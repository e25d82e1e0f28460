/** What people and conversations are called. */
import { t } from "../i18n/index.js";
import { conversations } from "./chats.js";
import { client } from "./phase.js";

type Info = (typeof conversations.value)[number];

/** The title of a group, and the other one's name in a pair. */
export function nameOf(info: Info): string {
  if (info.title) return info.title;
  const others = (info.members ?? []).filter((member) => member.principal_id !== client().userId);
  return others.map((member) => member.display_name).join(", ") || "–";
}

export function memberName(id: string, conversationId: string): string {
  if (id === client().userId) return t("you");
  const info = conversations.value.find((one) => one.conversation_id === conversationId);
  return info?.members?.find((member) => member.principal_id === id)?.display_name ?? "?";
}

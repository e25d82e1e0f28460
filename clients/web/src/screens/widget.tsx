/**
 * The conversation with one agent, on a page of somebody else. That page can lay things over it, so nothing is decided here:
 * approvals, tools and settings are in the app.
 */
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { QuestionDialog } from "../parts/action.js";
import { t } from "../i18n/index.js";
import { conversations } from "../model/chats.js";
import { client } from "../model/phase.js";
import { firstRoute } from "../parts/widget-frame.js";
import { AgentLink } from "./agents.js";
import { ConversationScreen } from "./conversation.js";

const opened = signal<string | null>(null);

export function Widget(): JSX.Element {
  if (firstRoute.screen !== "agent-link") return <p class="centre">{t("no_agent")}</p>;
  const { agentId, keyId } = firstRoute;
  const id = opened.value ?? conversationWith(agentId);
  return (
    <main class="inside-widget">
      {id ? (
        <ConversationScreen key={id} id={id} />
      ) : (
        <AgentLink agentId={agentId} keyId={keyId} onOpen={(found) => (opened.value = found)} />
      )}
      <QuestionDialog />
    </main>
  );
}

function conversationWith(agentId: string): string | null {
  const found = conversations.value.find(({ members }) => {
    const others = members?.filter(({ principal_id: id }) => id !== client().userId) ?? [];
    return others.length === 1 && others[0]!.principal_id === agentId;
  });
  return found?.conversation_id ?? null;
}

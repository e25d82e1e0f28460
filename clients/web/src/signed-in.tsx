/** What a person sees after the sign-in. It is fetched beside the sign-in, which does not wait for it. */
import type { JSX } from "preact";
import { QuestionDialog } from "./parts/action.js";
import { ProofDialog } from "./parts/proof.js";
import { t, type Texts } from "./i18n/index.js";
import { isOnline } from "./model/line.js";
import { phase } from "./model/phase.js";
import { isWidget } from "./model/place.js";
import { approvals, askedGrants, toolRequests } from "./model/requests.js";
import { type Route, route } from "./router.js";
import { AgentPage } from "./screens/agent.js";
import { Agents, AgentLink } from "./screens/agents.js";
import { Approvals } from "./screens/approvals.js";
import { ConversationScreen } from "./screens/conversation.js";
import { Conversations } from "./screens/conversations.js";
import { Keys } from "./screens/keys.js";
import { Settings } from "./screens/settings/index.js";
import { ToolCallDialog } from "./screens/tool-call.js";
import { Widget } from "./screens/widget.js";

export { start } from "./model/session.js";

export function Inside(): JSX.Element {
  const now = phase.value;
  if (now.is === "without-keys") {
    return (
      <>
        <Keys hasBackup={now.hasBackup} />
        <QuestionDialog />
      </>
    );
  }
  return isWidget ? <Widget /> : <SignedIn />;
}

const TABS = [
  ["conversations", "", "conversations"],
  ["approvals", "approvals", "approvals"],
  ["agents", "agents", "agents"],
  ["settings", "settings", "settings"],
] as const satisfies readonly (readonly [Route["screen"], string, keyof Texts])[];

function SignedIn(): JSX.Element {
  const { screen } = route.value;
  const isInConversation = screen === "conversation";
  const first = toolRequests.value[0];
  const waiting = approvals.value.length + askedGrants.value.length;
  return (
    <div class={isInConversation ? "frame in-conversation" : "frame"}>
      <nav aria-label="Blindpipe">
        {TABS.map(([tab, path, label]) => (
          <a key={tab} href={`#/${path}`} aria-current={isAt(tab, screen) ? "page" : undefined}>
            {t(label)}
            {tab === "approvals" && waiting > 0 && <b class="count">{waiting}</b>}
          </a>
        ))}
      </nav>
      {!isOnline.value && (
        <p class="banner" role="status">
          {t("offline")}
        </p>
      )}
      <main>
        <Screen />
      </main>
      {first && <ToolCallDialog key={first.request.call.request_id} shown={first} />}
      <ProofDialog />
      <QuestionDialog />
    </div>
  );
}

function isAt(tab: string, screen: Route["screen"]): boolean {
  return tab === screen || (tab === "conversations" && screen === "conversation") || (tab === "agents" && screen === "agent");
}

function Screen(): JSX.Element {
  const at = route.value;
  switch (at.screen) {
    case "approvals":
      return <Approvals />;
    case "agents":
      return <Agents />;
    case "agent":
      return <AgentPage key={at.id} id={at.id} />;
    case "agent-link":
      return <AgentLink agentId={at.agentId} keyId={at.keyId} />;
    case "settings":
      return <Settings section={at.section} />;
    default:
      return (
        <>
          <Conversations selected={at.screen === "conversation" ? at.id : null} />
          {at.screen === "conversation" && <ConversationScreen key={at.id} id={at.id} />}
        </>
      );
  }
}

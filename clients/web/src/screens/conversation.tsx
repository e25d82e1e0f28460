/** A conversation: its messages, what is being written, and the field to write in. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { contentView, type TimelineItem } from "@blindpipe/client";
import { ask, Button, Fault, useAction } from "../parts/action.js";
import { Composer, type Draft } from "../parts/composer.js";
import { Feed } from "../parts/feed.js";
import { Markdown } from "../parts/markdown.js";
import { MessageItem } from "../parts/message.js";
import { Outgoing } from "../parts/outgoing.js";
import { Verify } from "../parts/verify.js";
import { t } from "../i18n/index.js";
import type { Chat, Live } from "../model/chat.js";
import { chat, conversations, notices } from "../model/chats.js";
import { memberName, nameOf } from "../model/names.js";
import { isShown, isWidget } from "../model/place.js";
import { outbox } from "../model/outbox.js";
import { client } from "../model/phase.js";
import { isCompared, type Principal, waitingKeys } from "../model/trust.js";
import { go } from "../router.js";

/** Messages that a screen reader still has to say. */
const MAX_ANNOUNCED = 3;
const ANNOUNCED_CHARACTERS = 300;

type Member = NonNullable<(typeof conversations.value)[number]["members"]>[number];

const principalOf = ({ principal_type, principal_id }: Member): Principal => ({ type: principal_type, id: principal_id });

/** The other one of a pair. */
function otherOf(members: readonly Member[]): Member | null {
  const others = members.filter((member) => member.principal_id !== client().userId);
  return others.length === 1 ? others[0]! : null;
}

export function ConversationScreen({ id }: { readonly id: string }): JSX.Element {
  const open = chat(id);
  const draft = useSignal<Draft>({ text: "", about: null });
  const action = useAction();
  const info = conversations.value.find((one) => one.conversation_id === id);
  const hasAgent = info?.members?.some((member) => member.principal_type === "agent") ?? false;
  const other = otherOf(info?.members ?? []);
  return (
    <section class="conversation" aria-label={info ? nameOf(info) : t("message")}>
      <header>
        <a class="back" href="#/">
          {t("back")}
        </a>
        <h1>
          <bdi>{info ? nameOf(info) : ""}</bdi>
        </h1>
        {other && isCompared(principalOf(other)) && <small class="hint">{t("keys_compared")}</small>}
        {hasAgent && (
          <Button action={action} kind="plain" onPress={() => open.conversation.stop()}>
            {t("stop")}
          </Button>
        )}
        {info && !isWidget && (
          <details class="menu">
            <summary>{t("more")}</summary>
            <div>
              <Verify members={info.members ?? []} />
              <Block members={info.members ?? []} />
            </div>
          </details>
        )}
      </header>
      <Fault of={action} />
      <Notices id={id} members={info?.members ?? []} />
      <Messages open={open} draft={draft} />
      <Composer conversation={open.conversation} draft={draft} />
    </section>
  );
}

interface MessagesProps {
  readonly open: Chat;
  readonly draft: { value: Draft };
}

function Messages({ open, draft }: MessagesProps): JSX.Element {
  const view = useRef<HTMLDivElement>(null);
  const action = useAction();
  const { conversation } = open;
  const newest = open.items.value.at(-1)?.received;
  useEffect(() => {
    const isOfOther = newest && newest.message.sender.id !== client().userId;
    if (isOfOther && isShown.value) void open.markRead(newest);
  }, [newest?.message.message_id, isShown.value]);
  const older = (): Promise<void> => action.run(() => open.older());
  return (
    <>
      <div class="messages" ref={view} tabIndex={0} role="group" aria-label={t("messages")}>
        <div class="inside">
          <Fault of={action} />
          {open.hasMore.value && (
            <button type="button" class="quiet" disabled={action.isRunning.value} onClick={() => void older()}>
              {t("older")}
            </button>
          )}
          <Feed
            items={open.items.value}
            keyOf={keyOf}
            scroller={view}
            label={t("messages")}
            isWhole={!open.hasMore.value}
            onNearBeginning={() => {
              // Until the service answers, its first page is read without a word.
              if (open.hasMore.value && open.isRead) void older();
            }}
            row={(item, place) => (
              <MessageItem
                item={item}
                conversation={conversation}
                place={place}
                onReply={(about) => (draft.value = { text: about?.kind === "edit" ? textOf(item) : "", about })}
              />
            )}
          />
          {open.live.value.map((live) => (
            <LiveMessage key={live.streamId} live={live} conversationId={conversation.id} />
          ))}
          {outbox.value
            .filter((waiting) => waiting.conversation.id === conversation.id)
            .map((waiting) => (
              <Outgoing key={waiting.id} waiting={waiting} />
            ))}
          {open.typing.value.map((id) => (
            <p key={id} class="typing">
              <bdi>{memberName(id, conversation.id)}</bdi> {t("writing")}
            </p>
          ))}
        </div>
      </div>
      <Announcements open={open} />
    </>
  );
}

const keyOf = (item: TimelineItem): string => item.received.message.message_id;

function textOf({ content }: TimelineItem): string {
  return content ? (contentView(content).text ?? "") : "";
}

/** A screen reader says what others write now, and not what a scroll brings into view. */
function Announcements({ open }: { readonly open: Chat }): JSX.Element {
  const since = useRef<number | null>(null);
  const items = open.items.value;
  if (since.current === null && items.length > 0) since.current = items.at(-1)!.received.message.seq;
  const fresh = items
    .slice(-MAX_ANNOUNCED)
    .map((item) => ({ item, message: item.received.message }))
    .filter(({ message }) => message.seq > (since.current ?? 0) && message.sender.id !== client().userId);
  return (
    <div class="sr-only" role="log">
      {fresh.map(({ item, message }) => (
        <p key={message.message_id}>
          {memberName(message.sender.id, open.conversation.id)}: {textOf(item).slice(0, ANNOUNCED_CHARACTERS)}
        </p>
      ))}
    </div>
  );
}

function LiveMessage({ live, conversationId }: { readonly live: Live; readonly conversationId: string }): JSX.Element {
  return (
    <article class="message live" aria-busy="true">
      <header>
        <bdi>{memberName(live.sender.id, conversationId)}</bdi> <small>{live.status ? <bdi>{live.status}</bdi> : t("writing")}</small>
      </header>
      {live.hasHole && <small class="hint">{t("hole")}</small>}
      <Markdown text={live.text} />
    </article>
  );
}

/** In a pair, the other one can be blocked. */
function Block({ members }: { readonly members: readonly Member[] }): JSX.Element | null {
  const action = useAction();
  const other = otherOf(members);
  if (!other) return null;
  const block = async (): Promise<void> => {
    const isAgent = other.principal_type === "agent";
    if (!(await ask(t(isAgent ? "block_agent_ask" : "block_ask", { name: other.display_name })))) return;
    await client().block(other.principal_id);
    go("settings/blocks");
  };
  return (
    <>
      <Button action={action} kind="quiet" onPress={block}>
        {t("block", { name: other.display_name })}
      </Button>
      <Fault of={action} />
    </>
  );
}

interface NoticesProps {
  readonly id: string;
  readonly members: readonly Member[];
}

/** What the person must know before trusting what stands here. */
function Notices({ id, members }: NoticesProps): JSX.Element | null {
  // A key that waits has a notice for as long as it does.
  const told = notices.value.filter(({ type }) => type !== "waiting_key");
  const here = told.filter((one) => one.conversation_id === id || one.conversation_id === null);
  const texts = new Set(here.map((one) => words(one.type, one.principal_id, id)));
  const waiting = members.filter(({ principal_id }) => principal_id !== client().userId);
  const asked = waiting.filter((member) => waitingKeys(principalOf(member)).length > 0);
  if (texts.size + asked.length === 0) return null;
  return (
    <div class="notices" role="status">
      {asked.map((member) => (
        <WaitingKeys key={member.principal_id} member={member} id={id} />
      ))}
      {[...texts].map((text) => (
        <p key={text}>{text}</p>
      ))}
    </div>
  );
}

interface WaitingKeysProps {
  readonly id: string;
  readonly member: Member;
}

function WaitingKeys({ id, member }: WaitingKeysProps): JSX.Element {
  const action = useAction();
  const name = member.display_name;
  const confirm = async (): Promise<void> => {
    if (!(await ask(t("confirm_key_ask", { name })))) return;
    for (const key of waitingKeys(principalOf(member))) client().confirm(principalOf(member), key);
    await chat(id).catchUp();
  };
  return (
    <div class="row">
      <p>{t("key_waiting", { name })}</p>
      <Button action={action} label={`${t("confirm")}: ${name}`} onPress={confirm}>
        {t("confirm")}
      </Button>
      <Fault of={action} />
    </div>
  );
}

function words(type: string, who: string | null, conversationId: string): string {
  const name = who ? memberName(who, conversationId) : "";
  if (type === "not_rotated") return t("not_rotated");
  if (type === "own_list_key") return t("own_list_key");
  return t("key_new", { name });
}

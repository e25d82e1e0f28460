/** A message as it is shown, and what can be done with it. */
import type { JSX } from "preact";
import { type Conversation, contentView, type TimelineItem } from "@blindpipe/client";
import { ask, Button, Fault, useAction } from "./action.js";
import type { Draft } from "./composer.js";
import type { Place } from "./feed.js";
import { File } from "./file.js";
import { Markdown } from "./markdown.js";
import { t, time } from "../i18n/index.js";
import { memberName } from "../model/names.js";
import { isWidget } from "../model/place.js";
import { client } from "../model/phase.js";

const QUICK_REACTIONS = ["👍", "✅", "👀"] as const;

export interface MessageProps {
  readonly item: TimelineItem;
  readonly conversation: Conversation;
  readonly place: Place;
  readonly onReply: (about: Draft["about"]) => void;
}

export function MessageItem({ item, conversation, place, onReply }: MessageProps): JSX.Element {
  const { message } = item.received;
  const isOwn = message.sender.id === client().userId;
  const sender = memberName(message.sender.id, conversation.id);
  return (
    <article
      class={isOwn ? "message own" : "message"}
      data-state={item.state}
      tabIndex={-1}
      aria-posinset={place.position}
      aria-setsize={place.size}
      aria-label={`${sender}, ${time(message.created_at)}`}
    >
      <header>
        <bdi>{sender}</bdi> <time dateTime={message.created_at}>{time(message.created_at)}</time>
        {item.edits > 0 && <small> · {t("edited")}</small>}
      </header>
      <Body item={item} conversation={conversation} />
      {item.state === "shown" && (
        <Tools item={item} conversation={conversation} isOwn={isOwn} onReply={onReply} />
      )}
    </article>
  );
}

function Body({ item, conversation }: Pick<MessageProps, "item" | "conversation">): JSX.Element {
  if (item.state === "deleted") return <p class="hint">{t("deleted")}</p>;
  if (!item.content) return <p class="hint">{t("undecryptable")}</p>;
  const view = contentView(item.content);
  if (view.kind === "file") return <File item={item} conversation={conversation} caption={view.text} />;
  if (view.kind === "question") return <Question item={item} conversation={conversation} text={view.text} />;
  if (view.kind === "approval") {
    return (
      <p class="plain-text">
        {view.text} <Approvals />
      </p>
    );
  }
  // Models write markdown; people's own characters stay as they are.
  const isMarkdown = view.markdown || item.received.message.sender.type === "agent";
  return isMarkdown ? <Markdown text={view.text} /> : <p class="plain-text">{view.text}</p>;
}

/** A page around the widget could lay something over the buttons, so it has none. */
function Approvals(): JSX.Element {
  if (!isWidget) return <a href="#/approvals">{t("approvals")}</a>;
  return (
    <a href="/app#/approvals" target="_blank" rel="noopener">
      {t("decide_in_app")}
    </a>
  );
}

function Question({
  item,
  conversation,
  text,
}: Pick<MessageProps, "item" | "conversation"> & { readonly text: string }): JSX.Element {
  const action = useAction();
  const choices = item.content?.["choices"];
  const shown = Array.isArray(choices) ? choices.filter((each) => typeof each === "string") : [];
  return (
    <>
      <p class="plain-text">{text}</p>
      <div class="row">
        {shown.map((choice) => (
          <Button key={choice} action={action} onPress={() => conversation.answer(item.received, choice)}>
            {choice}
          </Button>
        ))}
      </div>
      <Fault of={action} />
    </>
  );
}

function Tools({
  item,
  conversation,
  isOwn,
  onReply,
}: Omit<MessageProps, "place"> & { readonly isOwn: boolean }): JSX.Element {
  const action = useAction();
  const { received } = item;
  const me = client().userId;
  const remove = async (): Promise<void> => {
    if (await ask(t("delete_ask"))) await conversation.delete(received);
  };
  const toggle = (emoji: string): Promise<unknown> => {
    const senders = item.reactions.find((one) => one.emoji === emoji)?.senders ?? [];
    return conversation.react(received, emoji, { remove: senders.some((sender) => sender.id === me) });
  };
  const missing = QUICK_REACTIONS.filter((emoji) => !item.reactions.some((one) => one.emoji === emoji));
  return (
    <footer>
      {item.reactions.map(({ emoji, senders }) => (
        <Button
          key={emoji}
          action={action}
          kind="quiet"
          label={`${t("react")} ${emoji} ${senders.length}`}
          onPress={() => toggle(emoji)}
        >
          {emoji} {senders.length}
        </Button>
      ))}
      <span class="tools">
        {missing.map((emoji) => (
          <Button key={emoji} action={action} kind="quiet" label={`${t("react")} ${emoji}`} onPress={() => toggle(emoji)}>
            {emoji}
          </Button>
        ))}
        <button type="button" class="quiet" onClick={() => onReply({ item, kind: "reply" })}>
          {t("reply")}
        </button>
        {isOwn && (
          <>
            <button type="button" class="quiet" onClick={() => onReply({ item, kind: "edit" })}>
              {t("edit")}
            </button>
            <Button action={action} kind="quiet" onPress={remove}>
              {t("delete")}
            </Button>
          </>
        )}
      </span>
      <Fault of={action} />
    </footer>
  );
}

/** The list of conversations. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { t, time } from "../i18n/index.js";
import { conversations } from "../model/chats.js";
import { nameOf } from "../model/names.js";

type Info = (typeof conversations.value)[number];

export function Conversations({ selected }: { readonly selected: string | null }): JSX.Element {
  const wanted = useSignal("");
  const words = wanted.value.trim().toLowerCase();
  const shown = conversations.value.filter((info) => nameOf(info).toLowerCase().includes(words));
  return (
    <section class="list" aria-label={t("conversations")}>
      <h1>{t("conversations")}</h1>
      <input
        type="search"
        placeholder={t("search")}
        aria-label={t("search")}
        value={wanted.value}
        onInput={(event) => (wanted.value = event.currentTarget.value)}
      />
      {conversations.value.length === 0 && <p class="hint">{t("no_conversations")}</p>}
      <ul>
        {shown.map((info) => (
          <li key={info.conversation_id}>
            <Row info={info} isSelected={info.conversation_id === selected} />
          </li>
        ))}
      </ul>
    </section>
  );
}

function Row({ info, isSelected }: { readonly info: Info; readonly isSelected: boolean }): JSX.Element {
  const unread = info.unread_count ?? 0;
  return (
    <a href={`#/c/${info.conversation_id}`} aria-current={isSelected ? "true" : undefined}>
      <span class="name">
        <bdi>{nameOf(info)}</bdi>
      </span>
      <time dateTime={info.last_activity_at}>{time(info.last_activity_at)}</time>
      {unread > 0 && (
        <b class="count" aria-label={t("unread", { count: unread })}>
          {unread}
        </b>
      )}
    </a>
  );
}

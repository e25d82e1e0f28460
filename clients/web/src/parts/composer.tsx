/** The field to write in. */
import { type Signal, useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { type Conversation, contentView, type TimelineItem } from "@blindpipe/client";
import { Fault, useAction } from "./action.js";
import { percent, t } from "../i18n/index.js";
import { post } from "../model/outbox.js";
import { upload } from "../model/uploads.js";

/** What is written, and the message that it answers or replaces. */
export interface Draft {
  readonly text: string;
  readonly about: { readonly item: TimelineItem; readonly kind: "reply" | "edit" } | null;
}

export interface ComposerProps {
  readonly conversation: Conversation;
  readonly draft: Signal<Draft>;
}

export function Composer({ conversation, draft }: ComposerProps): JSX.Element {
  const action = useAction();
  // A text does not wait for a file.
  const attaching = useAction();
  const field = useRef<HTMLTextAreaElement>(null);
  const { text, about } = draft.value;
  useEffect(() => {
    if (about) field.current?.focus();
  }, [about]);

  const send = async (): Promise<void> => {
    const words = text.trim();
    if (!words) return;
    draft.value = { text: "", about: null };
    field.current?.focus();
    if (about?.kind !== "edit") return post(conversation, words, about?.item.received ?? null);
    try {
      await conversation.edit(about.item.received, words);
    } catch (error) {
      // An edit that fails loses no text.
      draft.value = { text, about };
      throw error;
    }
  };
  const sending = useSignal("");
  const attach = async (files: readonly File[]): Promise<void> => {
    for (const file of files) {
      sending.value = file.name;
      const bytes = new Uint8Array(await file.arrayBuffer());
      await conversation.sendFile({ name: file.name, contentType: file.type || "application/octet-stream", bytes });
    }
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === "Escape" && about) draft.value = { text: "", about: null };
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    void action.run(send);
  };

  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        void action.run(send);
      }}
    >
      {about && (
        <p class="about">
          {about.kind === "edit" ? t("editing") : t("replying", { text: quote(about.item) })}
          <button type="button" class="quiet" onClick={() => (draft.value = { text: "", about: null })}>
            {t("cancel")}
          </button>
        </p>
      )}
      <Fault of={action} />
      <Fault of={attaching} />
      {attaching.isRunning.value && <Progress name={sending.value} />}
      <div class="row">
        <label class="attach">
          <span class="sr-only">{t("attach")}</span>
          <span aria-hidden="true">+</span>
          <input
            type="file"
            class="sr-only"
            multiple
            disabled={attaching.isRunning.value}
            onChange={(event) => {
              const files = [...(event.currentTarget.files ?? [])];
              // The same file can be chosen again.
              event.currentTarget.value = "";
              void attaching.run(() => attach(files));
            }}
          />
        </label>
        <textarea
          ref={field}
          rows={1}
          aria-label={t("write")}
          placeholder={t("write")}
          value={text}
          onInput={(event) => (draft.value = { text: event.currentTarget.value, about })}
          onKeyDown={onKeyDown}
        />
        <button class="primary" disabled={!text.trim()}>
          {t("send")}
        </button>
      </div>
    </form>
  );
}

/** Without a value until the first bytes are on their way: the browser encrypts before. */
function Progress({ name }: { readonly name: string }): JSX.Element {
  const now = upload.value;
  const share = now && now.sentBytes / now.totalBytes;
  return (
    <label class="progress">
      {t("sending_file", { name })}
      <progress max={1} value={share ?? undefined} />
      {/* The bar itself tells a screen reader. */}
      {share !== null && <span aria-hidden="true">{percent(share)}</span>}
    </label>
  );
}

const QUOTE_CHARACTERS = 80;

export function quote(item: TimelineItem): string {
  const text = item.content ? (contentView(item.content).text ?? "") : "";
  return text.length > QUOTE_CHARACTERS ? `${text.slice(0, QUOTE_CHARACTERS)}…` : text;
}

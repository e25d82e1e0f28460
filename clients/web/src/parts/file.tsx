/** A file of a message: shown if it is a picture, and saved. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";
import type { Conversation, TimelineItem } from "@blindpipe/client";
import { Button, Fault, useAction } from "./action.js";
import { t } from "../i18n/index.js";

/** Pictures that every browser draws and that run nothing: no SVG. */
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
/** A larger one is saved and not shown. */
const MAX_PICTURE_BYTES = 20 * 1024 * 1024;
/** The browser has begun to save a file by then. */
const SAVE_TIMEOUT_MS = 60_000;

interface FileProps {
  readonly item: TimelineItem;
  readonly conversation: Conversation;
  readonly caption: string;
}

export function File({ item, conversation, caption }: FileProps): JSX.Element {
  const action = useAction();
  const picture = useSignal<string | null>(null);
  const { name: given, content_type: type, size } = item.content!;
  const name = String(given ?? "file");
  const isPicture = PICTURES.has(String(type)) && Number(size) <= MAX_PICTURE_BYTES;

  const save = async (): Promise<void> => saveAs(await conversation.downloadFile(item.content!), name);
  const show = async (): Promise<void> => {
    picture.value = urlOf(await conversation.downloadFile(item.content!), String(type));
  };
  // The page keeps no opened file longer than its message is drawn.
  useEffect(() => () => URL.revokeObjectURL(picture.peek() ?? ""), []);

  return (
    <>
      {caption !== name && <p class="plain-text">{caption}</p>}
      {picture.value && <img class="picture" src={picture.value} alt={name} />}
      <div class="row">
        {isPicture && !picture.value && (
          <Button action={action} onPress={show}>
            {t("show_file", { name })}
          </Button>
        )}
        <Button action={action} onPress={save}>
          {t("download", { name })}
        </Button>
      </div>
      <Fault of={action} />
    </>
  );
}

/** The browser saves it, and never shows it as a page. */
export function saveAs(bytes: Uint8Array | string, name: string): void {
  const url = urlOf(bytes, "application/octet-stream");
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), SAVE_TIMEOUT_MS);
}

function urlOf(bytes: Uint8Array | string, type: string): string {
  return URL.createObjectURL(new Blob([bytes as BlobPart], { type }));
}

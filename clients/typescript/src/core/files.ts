/** Files: sealed here, stored as ciphertext, opened here. */
import { base64 } from "../e2ee/bytes.js";
import { DecryptError } from "../e2ee/errors.js";
import { type FileContent, fileHash, fileKey, openFile, sealFile } from "../e2ee/file.js";
import type { Http } from "../transport/http.js";
import type { ConfirmedUpload, RequestedUpload } from "./types.js";

/** A small picture of a file: PNG, JPEG or WebP of at most 24 KiB. */
export interface Thumbnail {
  readonly contentType: string;
  readonly bytes: Uint8Array;
  readonly width: number;
  readonly height: number;
}

export interface NewFile {
  readonly name: string;
  readonly contentType: string;
  readonly bytes: Uint8Array;
  readonly caption?: string;
  /** By default readers take it from the content type. */
  readonly kind?: "image" | "audio" | "video" | "document";
  readonly thumbnail?: Thumbnail;
}

/** The fields that readers show beside the name. */
function shownFields({ caption, kind, thumbnail }: NewFile): Partial<FileContent> {
  const picture = thumbnail && {
    content_type: thumbnail.contentType,
    data: base64(thumbnail.bytes),
    width: thumbnail.width,
    height: thumbnail.height,
  };
  return {
    ...(caption === undefined ? {} : { caption }),
    ...(kind === undefined ? {} : { kind }),
    ...(picture ? { thumbnail: picture } : {}),
  };
}

const UPLOAD_NAME = "blob";
const UPLOAD_TYPE = "application/octet-stream";
const TRANSFER_TIMEOUT_MS = 600_000;

/** Seals and uploads; `base` is the route of one's kind. Answers the content of the message. */
export async function uploadFile(
  http: Http,
  base: string,
  conversationId: string,
  file: NewFile,
): Promise<FileContent> {
  const sealed = await sealFile(file.bytes);
  const upload = await http.data<RequestedUpload>({
    method: "POST",
    path: base,
    body: {
      filename: UPLOAD_NAME,
      content_type: UPLOAD_TYPE,
      size: sealed.ciphertext.length,
      conversation_id: conversationId,
    },
  });
  await http.bytes({
    method: "PUT",
    path: `${base}/${upload.upload_id}/upload`,
    bytes: sealed.ciphertext,
    headers: { "content-type": UPLOAD_TYPE },
    timeoutMs: TRANSFER_TIMEOUT_MS,
  });
  const stored = await http.data<ConfirmedUpload>({
    method: "POST",
    path: "/files/confirm",
    body: { upload_id: upload.upload_id, sha256: sealed.sha256 },
    repeatable: true,
  });
  return {
    type: "file",
    file_id: stored.file_id,
    object_key: stored.object_key,
    name: file.name,
    content_type: file.contentType,
    size: file.bytes.length,
    sha256: sealed.sha256,
    key: base64(sealed.key),
    ...shownFields(file),
  };
}

/** The sender names the object, so the name must not lead to any other route. */
export function objectPath(objectKey: unknown): string {
  const isPlain = typeof objectKey === "string" && /^[A-Za-z0-9._/-]+$/.test(objectKey);
  if (!isPlain || objectKey.includes("..")) throw new DecryptError("malformed");
  return `/objects/${objectKey}`;
}

/**
 * The bytes of a file; nothing is given out before hash and last chunk are checked. What the
 * content says is checked before any call.
 */
export async function downloadFile(http: Http, content: FileContent): Promise<Uint8Array> {
  const path = objectPath(content.object_key);
  const key = fileKey(content);
  const sha256 = fileHash(content);
  const response = await http.bytes({
    method: "GET",
    path,
    timeoutMs: TRANSFER_TIMEOUT_MS,
  });
  const ciphertext = new Uint8Array(await response.arrayBuffer());
  return openFile(ciphertext, key, sha256);
}

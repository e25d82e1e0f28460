/** Files of mode 0600: lines are added, or all is written anew beside. */

const NODE_FS = "node:fs/promises";

/** Node's library. A bundler of a web page does not look for it, because nothing here runs there. */
export function fs(): Promise<typeof import("node:fs/promises")> {
  return import(/* @vite-ignore */ /* webpackIgnore: true */ NODE_FS) as Promise<
    typeof import("node:fs/promises")
  >;
}

export const LINE_FEED = 0x0a;
const CHUNK_BYTES = 256 * 1024;

/** The lines of a file without their ends, chunk by chunk; the last one may be torn. */
export async function* lineBatches(path: string): AsyncGenerator<Buffer[]> {
  const { open } = await fs();
  const file = await open(path, "r").catch((error: unknown) => {
    if ((error as { code?: string }).code === "ENOENT") return null;
    throw error;
  });
  if (!file) return;
  try {
    let rest = Buffer.alloc(0);
    for (;;) {
      const { buffer, bytesRead } = await file.read(Buffer.allocUnsafe(CHUNK_BYTES), 0);
      if (bytesRead === 0) break;
      const bytes = Buffer.concat([rest, buffer.subarray(0, bytesRead)]);
      const lines = [];
      let at = 0;
      for (let end; (end = bytes.indexOf(LINE_FEED, at)) >= 0; at = end + 1)
        lines.push(bytes.subarray(at, end));
      rest = bytes.subarray(at);
      yield lines;
    }
    if (rest.length > 0) yield [rest];
  } finally {
    await file.close();
  }
}

/** A crash may have cut the last line, which nobody has acknowledged. The size since. */
export async function cutTornLine(path: string): Promise<number> {
  const { open } = await fs();
  const file = await open(path, "r+");
  try {
    const { size } = await file.stat();
    let end = size;
    for (let found = -1; end > 0 && found < 0; ) {
      const start = Math.max(0, end - CHUNK_BYTES);
      const { buffer } = await file.read(Buffer.alloc(end - start), 0, end - start, start);
      found = buffer.lastIndexOf(LINE_FEED);
      end = found < 0 ? start : start + found + 1;
    }
    if (end < size) await file.truncate(end);
    return end;
  } finally {
    await file.close();
  }
}

/** Adds lines, durably; the size of the file since. A write that fails leaves none of them. */
export async function append(path: string, lines: string): Promise<number> {
  const { constants, open } = await fs();
  const isNew = !(await isThere(path));
  // Nobody else's file is written through a link. Windows has no such flag.
  const { O_APPEND, O_CREAT, O_WRONLY, O_NOFOLLOW = 0 } = constants;
  const file = await open(path, O_APPEND | O_CREAT | O_WRONLY | O_NOFOLLOW, 0o600);
  try {
    const { size } = await file.stat();
    try {
      await file.writeFile(lines);
      await file.sync();
    } catch (error) {
      await file.truncate(size);
      throw error;
    }
    if (isNew) await syncFolderOf(path);
    return (await file.stat()).size;
  } finally {
    await file.close();
  }
}

/** Null without a file, and for an empty one. */
export async function firstByte(path: string): Promise<number | null> {
  const { open } = await fs();
  if (!(await isThere(path))) return null;
  const file = await open(path, "r");
  try {
    const { bytesRead, buffer } = await file.read(Buffer.alloc(1), 0, 1, 0);
    return bytesRead === 0 ? null : buffer[0]!;
  } finally {
    await file.close();
  }
}

export async function isThere(path: string): Promise<boolean> {
  const { access } = await fs();
  return access(path).then(
    () => true,
    () => false,
  );
}

/** Writes beside the file, and renames. */
export async function replace(path: string, text: string | AsyncIterable<Buffer>): Promise<void> {
  const { open, rename, rm, writeFile } = await fs();
  const beside = `${path}.${process.pid}.tmp`;
  // Nobody else's file, and no link, is written through.
  await rm(beside, { force: true });
  const file = await open(beside, "wx", 0o600);
  try {
    await writeFile(file, text);
    await file.sync();
  } finally {
    await file.close();
  }
  await rename(beside, path);
  await syncFolderOf(path);
}

async function syncFolderOf(path: string): Promise<void> {
  // Windows opens no folder, and keeps the new name by itself.
  if (process.platform === "win32") return;
  const { open } = await fs();
  const folder = await open(path.slice(0, path.lastIndexOf("/") + 1) || ".", "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

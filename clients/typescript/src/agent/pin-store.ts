/** Where an agent keeps what it has learned about others' keys. */
import type { EpochMarks } from "../e2ee/room.js";
import type { StoredPins } from "../e2ee/trust.js";

export interface StoredTrust {
  readonly pins: StoredPins;
  readonly marks: Readonly<Record<string, EpochMarks>>;
}

export interface PinStore {
  load(): Promise<StoredTrust | null>;
  /** Resolves once it is kept durably: only then the events that taught it are acknowledged. */
  save(trust: StoredTrust): Promise<void>;
}

/** A JSON file, replaced as a whole. It holds public keys and numbers only. */
export function filePins(path: string): PinStore {
  return {
    async load() {
      const { readFile } = await import("node:fs/promises");
      try {
        return JSON.parse(await readFile(path, "utf8")) as StoredTrust;
      } catch (error) {
        if ((error as { code?: string }).code === "ENOENT") return null;
        throw error;
      }
    },
    async save(trust) {
      const { open, rename } = await import("node:fs/promises");
      const { dirname } = await import("node:path");
      const beside = `${path}.${process.pid}.tmp`;
      const file = await open(beside, "w", 0o600);
      try {
        await file.writeFile(JSON.stringify(trust));
        await file.sync();
      } finally {
        await file.close();
      }
      await rename(beside, path);
      // Windows opens no folder, and keeps the new name by itself.
      if (process.platform === "win32") return;
      const folder = await open(dirname(path), "r");
      try {
        await folder.sync();
      } finally {
        await folder.close();
      }
    },
  };
}

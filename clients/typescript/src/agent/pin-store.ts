/** Where an agent keeps what it has learned about others' keys. */
import type { EpochMarks } from "../e2ee/room.js";
import type { StoredPins } from "../e2ee/trust.js";

export interface StoredTrust {
  readonly pins: StoredPins;
  readonly marks: Readonly<Record<string, EpochMarks>>;
}

export interface PinStore {
  load(): Promise<StoredTrust | null>;
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
      const { rename, writeFile } = await import("node:fs/promises");
      const beside = `${path}.${process.pid}.tmp`;
      await writeFile(beside, JSON.stringify(trust), { mode: 0o600 });
      await rename(beside, path);
    },
  };
}

// The cost of an agent with 100,000 conversations, by the client's own program of measures.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const CONVERSATIONS = 100_000;
const MAX_START_S = 5;
/** Under the bounds that the README names. */
const MAX_MEMORY_MB = 210;
const PROGRAM = fileURLToPath(new URL("../../scripts/speed.mjs", import.meta.url));

test("an agent with 100,000 conversations starts in five seconds, in 210 MB", async () => {
  const parameters = [PROGRAM, "--conversations", String(CONVERSATIONS)];
  const { stdout } = await promisify(execFile)(process.execPath, parameters);
  const measured = (pattern: RegExp): number => Number(pattern.exec(stdout)?.[1]);
  const start = measured(/^start: ([\d.]+) s$/m);
  const memory = measured(/^memory: (\d+) MB at most$/m);
  assert(start < MAX_START_S && memory <= MAX_MEMORY_MB, stdout);
});

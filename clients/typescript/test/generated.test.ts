// Generated files are fresh, and documents name tests that are there.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const HERE = new URL("../../", import.meta.url);

function committed(name: string): string {
  return readFileSync(new URL(`src/generated/${name}`, HERE), "utf8");
}

test("the types are those of docs/api/openapi.json", () => {
  const tool = new URL("node_modules/openapi-typescript/bin/cli.js", HERE).pathname;
  const document = new URL("../../docs/api/openapi.json", HERE).pathname;
  const fresh = execFileSync(process.execPath, [tool, document], { encoding: "utf8" });
  assert.equal(committed("openapi.ts"), fresh, "run `npm run generate`");
});

test("there is a class per code of docs/api/errors.md", async () => {
  const { generate } = (await import(new URL("scripts/errors.mjs", HERE).href)) as {
    generate: (markdown: string) => string;
  };
  const catalogue = readFileSync(new URL("../../docs/api/errors.md", HERE), "utf8");
  assert.equal(committed("errors.ts"), generate(catalogue), "run `npm run generate`");
});

test("the table of attacks names tests that are there", () => {
  const document = readFileSync(new URL("../../docs/encryption.md", HERE), "utf8");
  const rows = document
    .split("\n")
    .filter((line) => line.startsWith("| ") && line.split(" | ").length === 5);
  const cells = rows.map((row) => row.split(" | ")[4]!);
  const named = cells.flatMap((cell) =>
    [...cell.matchAll(/`(\w+)`: ((?:`[^`]+`(?:, )?)+)/g)].flatMap(([, file, tests]) =>
      [...tests!.matchAll(/`([^`]+)`/g)].map(([, name]) => [file!, name!] as const),
    ),
  );
  assert(named.length >= 25, String(named.length));
  for (const [file, name] of named) {
    const isAttack = ["messages", "keys", "consent", "backups", "comparisons"].includes(file);
    const source = new URL(`test/${isAttack ? `attacks-${file}` : file}.test.ts`, HERE);
    const text = name.startsWith("…") ? name : `test("${name}`;
    const begins = text.replaceAll("…", "").trimEnd();
    assert(readFileSync(source, "utf8").includes(begins), `${file}: ${name}`);
  }
});

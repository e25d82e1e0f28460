// The files generated from the service's documents are fresh.
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

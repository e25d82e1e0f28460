// The types serve a project with the strictest settings, for Node and for browsers.
import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import { test } from "node:test";
import ts from "typescript";

const PROGRAM = fileURLToPath(new URL("../../test/user-project.ts", import.meta.url));
const STRICT: ts.CompilerOptions = {
  strict: true,
  exactOptionalPropertyTypes: true,
  noUncheckedIndexedAccess: true,
  noEmit: true,
  target: ts.ScriptTarget.ES2022,
  // The package's own declarations count too.
  skipLibCheck: false,
};

function faults(options: ts.CompilerOptions): string[] {
  const program = ts.createProgram([PROGRAM], { ...STRICT, ...options });
  return ts
    .getPreEmitDiagnostics(program)
    .map(({ file, messageText }) => `${file?.fileName}: ${JSON.stringify(messageText)}`);
}

test("a project for Node, by its own resolution and without the types of browsers", () => {
  const module = ts.ModuleKind.NodeNext;
  const moduleResolution = ts.ModuleResolutionKind.NodeNext;
  const lib = ["lib.es2022.d.ts"];
  assert.deepEqual(faults({ module, moduleResolution, lib, types: ["node"] }), []);
});

test("a project for browsers, by a bundler's resolution and without the types of Node", () => {
  const module = ts.ModuleKind.ESNext;
  const moduleResolution = ts.ModuleResolutionKind.Bundler;
  const lib = ["lib.es2022.d.ts", "lib.dom.d.ts"];
  assert.deepEqual(faults({ module, moduleResolution, lib, types: [] }), []);
});

// The build: the same bytes each time, in any folder, with checksums of all of them.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { devCluster } from "@blindpipe/client/testing";

const HERE = fileURLToPath(new URL("..", import.meta.url));
const BP = process.env.BLINDPIPE_BP ?? join(HERE, "../../target/debug/bp");
const SUMS = "SHA256SUMS";
/** All scripts and the style, compressed. */
const MAX_FIRST_LOAD_BYTES = 150 * 1024;

/** All files below a folder with their checksums, in order. */
function filesOf(folder) {
  const files = readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  return files
    .map(({ parentPath, name }) => join(parentPath, name).slice(folder.length + 1))
    .filter((name) => name !== SUMS)
    .sort()
    .map((name) => [createHash("sha256").update(readFileSync(join(folder, name))).digest("hex"), name]);
}

test("a build in another place has the same bytes, and names all of them", { timeout: 120_000 }, () => {
  const folder = mkdtempSync(join(tmpdir(), "app-"));
  try {
    // The place of the client is a part of the sources, as in the checkout.
    const web = join(folder, "clients/web");
    for (const part of ["src", "public", "index.html", "widget.html", "package.json", "tsconfig.json", "vite.config.ts"]) {
      cpSync(join(HERE, part), join(web, part), { recursive: true });
    }
    cpSync(join(HERE, "../typescript/dist"), join(folder, "clients/typescript/dist"), { recursive: true });
    cpSync(join(HERE, "../typescript/package.json"), join(folder, "clients/typescript/package.json"));
    symlinkSync(join(HERE, "../typescript/node_modules"), join(folder, "clients/typescript/node_modules"));
    cpSync(join(HERE, "node_modules"), join(web, "node_modules"), { recursive: true, verbatimSymlinks: true });
    execFileSync(join(web, "node_modules/.bin/vite"), ["build", "--logLevel", "error"], { cwd: web });
    const built = filesOf(join(HERE, "dist"));
    assert.deepEqual(filesOf(join(web, "dist")), built);
    const listed = readFileSync(join(HERE, "dist", SUMS), "utf8").trimEnd().split("\n");
    assert.deepEqual(listed.map((line) => line.split("  ")), built);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test("the first load is small", () => {
  const assets = join(HERE, "dist/assets");
  const sizes = readdirSync(assets).map((name) => gzipSync(readFileSync(join(assets, name))).length);
  const bytes = sizes.reduce((sum, size) => sum + size, 0);
  assert.ok(bytes <= MAX_FIRST_LOAD_BYTES, `${bytes} bytes`);
});

test("bp knows the app that a node serves, and another one", { skip: existsSync(BP) ? false : `${BP} is not built` }, async () => {
  const { nodes, authority } = await devCluster();
  const folder = mkdtempSync(join(tmpdir(), "bp-"));
  const verify = (sums) =>
    spawnSync(BP, ["--json", "--ca-file", authority, "app", "verify", nodes[0], "--sums", sums], {
      encoding: "utf8",
      env: { ...process.env, BP_CONFIG_DIR: folder },
    });
  try {
    const list = join(HERE, "dist", SUMS);
    const same = verify(list);
    assert.equal(same.status, 0, same.stdout + same.stderr);
    assert.equal(same.stdout.trim().split("\n").length, filesOf(join(HERE, "dist")).length);
    // The release of somebody else has another worker.
    const other = join(folder, SUMS);
    writeFileSync(other, readFileSync(list, "utf8").replace(/^.{8}(?=.*  sw\.js$)/m, "00000000"));
    const ran = verify(other);
    assert.equal(ran.status, 1, ran.stderr);
    const faults = ran.stdout.trim().split("\n").map((line) => JSON.parse(line)).filter(({ ok }) => !ok);
    assert.deepEqual(faults.map(({ file }) => file), ["sw.js"]);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build, defineConfig, type Plugin } from "vite";

const TARGET_VERSION = "es2022";
const SUMS = "SHA256SUMS";

/** Writes the checksums of all files, as `sha256sum` does: `bp app verify` compares a service with them. */
function sums(): Plugin {
  let folder = "";
  return {
    name: "sums",
    configResolved: ({ root, build }) => {
      folder = join(root, build.outDir);
    },
    // Vite has copied the public files by then.
    closeBundle: () => {
      const all = readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
      const names = all.map(({ parentPath, name }) => join(parentPath, name).slice(folder.length + 1)).sort();
      const lines = names.map((name) => {
        const sum = createHash("sha256").update(readFileSync(join(folder, name))).digest("hex");
        return `${sum}  ${name}\n`;
      });
      writeFileSync(join(folder, SUMS), lines.join(""));
    },
  };
}

/** The page names the scripts that it fetches later, so that the service worker keeps them with it. */
function later(): Plugin {
  return {
    name: "later",
    transformIndexHtml: {
      order: "post",
      handler: (html, { bundle }) => {
        const chunks = Object.values(bundle ?? {}).filter((each) => each.type === "chunk");
        const first = chunks.find(({ name }) => name === "signed-in");
        if (!first) throw new Error("the build has no chunk signed-in");
        const names = [first.fileName, ...first.imports].filter((name) => !html.includes(name));
        const paths = names.map((name) => `/app/${name}`).join(" ");
        return html.replace('<script type="module"', `<script type="module" data-later="${paths}"`);
      },
    },
  };
}

/** Service workers of all browsers are classic scripts, so the reading worker is built by itself into a single file. */
function readingWorker(): Plugin {
  return {
    name: "reading-worker",
    async generateBundle() {
      const lib = { entry: "src/worker/main.ts", formats: ["iife" as const], name: "worker" };
      const options = { target: TARGET_VERSION, write: false, lib, rollupOptions: { output: { inlineDynamicImports: true } } };
      const built = await build({ configFile: false, publicDir: false, logLevel: "warn", build: options });
      const [{ output }] = built as [{ output: { code: string }[] }];
      this.emitFile({ type: "asset", fileName: "reading-sw.js", source: output[0]!.code });
    },
  };
}

// The policy of the server allows no inline script, style or data: address, so nothing is inlined.
export default defineConfig({
  base: "/app/",
  plugins: [later(), readingWorker(), sums()],
  build: {
    target: TARGET_VERSION,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    cssCodeSplit: false,
    rollupOptions: { input: ["index.html", "widget.html"] },
  },
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  resolve: { preserveSymlinks: false },
});

import { defineConfig } from "vite";

// The policy of the server allows no inline script, style or data: address, so nothing is inlined.
export default defineConfig({
  base: "/app/",
  build: { target: "es2022", assetsInlineLimit: 0, modulePreload: { polyfill: false }, cssCodeSplit: false },
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  resolve: { preserveSymlinks: false },
});

// WebCrypto alone, as in browsers: without Node's own library the vectors give the same bytes. Where
// a browser is found, it runs them itself.
import { findBrowser } from "./browser.js";

if (!findBrowser()) {
  (process as { getBuiltinModule?: unknown }).getBuiltinModule = undefined;
  await import("./vectors.test.js");
}

export {};

// WebCrypto alone, as in browsers: without Node's own library the vectors give the same bytes.
(process as { getBuiltinModule?: unknown }).getBuiltinModule = undefined;
await import("./vectors.test.js");

export {};

/**
 * The service worker of a person who wants words in notifications: `sw.js`, and the reader that it asks. Without this wish
 * the worker holds no keys and opens nothing.
 */
import "../../public/sw.js";
import { decide, labels, read } from "./reader.js";

Object.assign(globalThis, { reader: { read, decide, labels } });

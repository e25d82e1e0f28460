// Chromium without a window, driven by its DevTools, with the package as its pages.
import { spawn, type ChildProcess } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { delimiter, extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { WebSocket } from "ws";
import { until } from "./support.js";

const PACKAGE = fileURLToPath(new URL("../../", import.meta.url));
const ROOT = join(PACKAGE, "../..");
/** The folder in which the development cluster's program keeps a browser that it fetched. */
const FETCHED = join(process.env["BLINDPIPE_PACKAGES"] ?? join(ROOT, ".dev/packages"), "browser");
const NAMES = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
const START_TIMEOUT_MS = 30_000;

/** The program of a browser; null if there is none. */
export function findBrowser(): string | null {
  const folders = [join(FETCHED, "usr/lib/chromium"), "/usr/lib/chromium"];
  folders.push(...(process.env["PATH"] ?? "").split(delimiter));
  const paths = folders.flatMap((folder) => NAMES.map((name) => join(folder, name)));
  return paths.find((path) => existsSync(path)) ?? null;
}

/** The imports of the tests, as a browser finds them. */
const IMPORTS = {
  "@blindpipe/client/e2ee": "/dist/e2ee/index.js",
  "#dist/": "/dist/",
  "@hpke/core": "/node_modules/@hpke/core/esm/mod.js",
  "@hpke/common": "/node_modules/@hpke/common/esm/mod.js",
  "hash-wasm": "/node_modules/hash-wasm/dist/index.esm.js",
  "node:test": "/shims/test.js",
  "node:assert/strict": "/shims/assert.js",
  "node:fs": "/shims/fs.js",
};

/** The little of Node that the tests of vectors use. */
const SHIMS: Readonly<Record<string, string>> = {
  "/shims/test.js": `
    export const tests = [];
    export const test = (name, run) => tests.push({ name, run });`,
  "/shims/fs.js": `
    export function readFileSync(path) {
      const request = new XMLHttpRequest();
      request.open("GET", path, false);
      request.send();
      if (request.status !== 200) throw new Error(path + " is missing");
      return request.responseText;
    }`,
  "/shims/assert.js": `
    const plain = (value) => JSON.stringify(value, (_, inner) =>
      inner instanceof Uint8Array ? [...inner] : inner === undefined ? null : sorted(inner));
    const sorted = (value) => value && typeof value === "object" && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))) : value;
    function assert(value, text = "not true") { if (!value) throw new Error(text); }
    assert.equal = (one, other, text = "") => {
      if (!Object.is(one, other)) throw new Error(text + ": " + one + " is not " + other);
    };
    assert.deepEqual = (one, other, text = "") => assert.equal(plain(one), plain(other), text);
    const fits = (error, wanted) => {
      const isSo = typeof wanted === "function"
        ? error instanceof wanted
        : Object.entries(wanted).every(([name, value]) => error[name] === value);
      if (!isSo) throw error;
    };
    assert.throws = (run, Class) => {
      try { run(); } catch (error) { return fits(error, Class); }
      throw new Error("it did not throw");
    };
    assert.rejects = async (promise, Class) => {
      try { await promise; } catch (error) { return fits(error, Class); }
      throw new Error("it did not reject");
    };
    export default assert;`,
};

const PAGE = `<!doctype html><meta charset="utf-8">
  <script type="importmap">${JSON.stringify({ imports: IMPORTS })}</script>
  <script>globalThis.process = { env: {} };</script>`;

const TYPES: Readonly<Record<string, string>> = {
  ".js": "text/javascript",
  ".json": "application/json",
};

function serve(): Promise<Server> {
  const server = createServer((request, response) => {
    const path = new URL(request.url!, "http://page.invalid").pathname;
    const type = path === "/" ? "text/html" : (TYPES[extname(path)] ?? "text/plain");
    response.setHeader("content-type", `${type}; charset=utf-8`);
    const file = join(path.startsWith("/vectors/") ? join(PACKAGE, "..") : PACKAGE, path);
    const body =
      path === "/" ? PAGE : (SHIMS[path] ?? (existsSync(file) ? readFileSync(file) : null));
    response.statusCode = body === null ? 404 : 200;
    response.end(body ?? "");
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server)));
}

export class Browser {
  #number = 0;
  readonly #answers = new Map<number, (answer: Answer) => void>();
  #page = "";

  private constructor(
    private readonly server: Server,
    private readonly child: ChildProcess,
    private readonly folder: string,
    private readonly devtools: WebSocket,
  ) {
    devtools.on("message", (data) => {
      const answer = JSON.parse(String(data)) as Answer & { id?: number };
      if (answer.id !== undefined) this.#answers.get(answer.id)?.(answer);
    });
  }

  static async start(program: string): Promise<Browser> {
    const server = await serve();
    const folder = mkdtempSync(join(tmpdir(), "browser-"));
    const { child, address } = await launch(program, folder).catch((error: unknown) => {
      server.close();
      throw error;
    });
    const devtools = new WebSocket(address);
    await new Promise((resolve, reject) => devtools.once("open", resolve).once("error", reject));
    const browser = new Browser(server, child, folder, devtools);
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
    const { targetId } = await browser.#ask("Target.createTarget", { url });
    const attached = await browser.#ask("Target.attachToTarget", { targetId, flatten: true });
    browser.#page = String(attached["sessionId"]);
    const isThere = `location.href === "${url}" && document.readyState === "complete"`;
    await until(() => browser.evaluate<boolean>(isThere), START_TIMEOUT_MS);
    return browser;
  }

  async #ask(method: string, params: object): Promise<Record<string, unknown>> {
    const id = ++this.#number;
    const page = this.#page ? { sessionId: this.#page } : {};
    const answer = new Promise<Answer>((resolve) => this.#answers.set(id, resolve));
    this.devtools.send(JSON.stringify({ id, method, params, ...page }));
    const { result, error } = await answer;
    if (error) throw new Error(`${method}: ${error.message}`);
    return result!;
  }

  /** The value of an expression in the page; promises are awaited. */
  async evaluate<T>(expression: string): Promise<T> {
    const params = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails } = (await this.#ask("Runtime.evaluate", params)) as {
      result: { value: T };
      exceptionDetails?: { exception?: { description?: string }; text: string };
    };
    if (exceptionDetails) {
      throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    }
    return result.value;
  }

  async stop(): Promise<void> {
    const ended = new Promise((resolve) => this.child.once("exit", resolve));
    this.devtools.terminate();
    this.child.kill("SIGKILL");
    await ended;
    this.server.closeAllConnections();
    this.server.close();
    // Processes of a killed browser write on for some seconds on a busy machine.
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 20 });
  }
}

interface Answer {
  readonly result?: Record<string, unknown>;
  readonly error?: { readonly message: string };
}

/** A fetched browser brings libraries in several folders. */
function foldersWithin(folder: string): string[] {
  const within = readdirSync(folder, { withFileTypes: true }).filter((each) => each.isDirectory());
  return [folder, ...within.flatMap((each) => foldersWithin(join(folder, each.name)))];
}

async function launch(
  program: string,
  folder: string,
): Promise<{ child: ChildProcess; address: string }> {
  const isFetched = program.startsWith(FETCHED);
  const fonts = join(folder, "fonts.conf");
  const dirs = [join(FETCHED, "usr/share/fonts"), "/usr/share/fonts"].map(
    (dir) => `<dir>${dir}</dir>`,
  );
  writeFileSync(fonts, `<fontconfig>${dirs.join("")}<cachedir>${folder}</cachedir></fontconfig>`);
  const libraries = isFetched ? foldersWithin(join(FETCHED, "usr/lib")) : [];
  const env = { ...process.env, HOME: folder, FONTCONFIG_FILE: fonts };
  if (isFetched) Object.assign(env, { LD_LIBRARY_PATH: libraries.join(":") });
  const own = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
  const rest = [
    "--no-proxy-server",
    "--remote-debugging-port=0",
    `--user-data-dir=${folder}/profile`,
  ];
  const child = spawn(program, [...own, ...rest, "about:blank"], {
    stdio: ["ignore", "ignore", "pipe"],
    env,
  });
  let said = "";
  const address = new Promise<string>((resolve, reject) => {
    const timer = setTimeout(
      () => reject(new Error(`the browser did not start: ${said}`)),
      START_TIMEOUT_MS,
    );
    child.once("exit", () => reject(new Error(`the browser has ended: ${said}`)));
    child.stderr!.on("data", (data) => {
      said += String(data);
      const found = /DevTools listening on (ws:\S+)\n/.exec(said)?.[1];
      if (!found) return;
      clearTimeout(timer);
      resolve(found);
    });
  });
  return { child, address: await address };
}

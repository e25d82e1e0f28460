/** How an agent begins: its keys, what it remembers, and the parts that work together. */
import { clearContent } from "../e2ee/approval.js";
import { base64, hex } from "../e2ee/bytes.js";
import type { JsonObject } from "../e2ee/content.js";
import type { EpochMarks } from "../e2ee/room.js";
import type { KeyPair, Principal } from "../e2ee/keys.js";
import { sign } from "../e2ee/primitives.js";
import { Texts } from "../e2ee/texts.js";
import { Trust } from "../e2ee/trust.js";
import { Session } from "../core/session.js";
import type { AgentKeys } from "../core/types.js";
import { AgentKeysMismatch } from "../generated/errors.js";
import { type HookCaller, type Logger, CONSOLE } from "../hooks.js";
import { Lessons } from "../stores/lessons.js";
import { Http } from "../transport/http.js";
import type { Socket } from "../transport/socket.js";
import { Approvals } from "./approvals.js";
import { type AgentOptions, checkKeyOrPlaintext, seedsOf } from "./options.js";
import { Outbox } from "./outbox.js";
import type { AgentParts } from "./parts.js";
import { type PinStore, filePins, keepsHandled } from "../stores/pin-store.js";
import { ToolCalls } from "./tool-calls.js";

/** A started agent. */
export interface Running {
  readonly parts: AgentParts;
  readonly pins: Trust;
  /** Keeps pins and marks where the developer said; false if they could not be kept. */
  readonly save: () => Promise<boolean>;
  /**
   * Takes over what other processes have stored, before something is done in a conversation; false
   * if it could not be read.
   */
  readonly enter: (conversationId: string | null) => Promise<boolean>;
}

export async function start(
  options: AgentOptions,
  hooks: HookCaller,
  socket: () => Socket | null,
  signal: AbortSignal,
): Promise<Running> {
  checkKeyOrPlaintext(options);
  const { agentId, token } = options;
  const logger = options.logger ?? CONSOLE;
  const http = new Http({
    url: options.url,
    fetch: options.fetch ?? ((...parameters) => fetch(...parameters)),
    hooks,
    token: () => token,
  });
  await publishManifest(options, http, signal);
  const held = await Promise.all(seedsOf(options.key).map((seed) => seed.keys()));
  const keys = await checkKeys(http, agentId, held, logger, signal);
  if (keys.length > 0) {
    watchKeys(() => checkKeys(http, agentId, held, logger, signal), logger, signal);
  }
  const self: Principal = { type: "agent", id: agentId };
  const { pins, store, marks } = await loadTrust(options, self, keys, logger);
  await pins.directory(self, keys);
  const allowsClear = options.plaintext === "allow";
  const lessons = new Lessons(store, hooks, logger);
  const session = new Session({
    http,
    self,
    signer: keys[0] ?? null,
    opening: keys,
    deviceId: null,
    pins,
    marks,
    allowsClear,
    maxAgeMs: options.maxAge,
    onNotice: ({ kind, about, keyId }, conversation_id) => {
      const details = { type: kind, principal_id: about.id, key_id: keyId, conversation_id };
      hooks.call("key_changed", details);
    },
    onTrustChanged: () => lessons.soon(),
    onHandled: (handled) => lessons.handled(handled),
  });
  lessons.hold(pins, session);
  if (keepsHandled(store)) session.resumeHandled(await store.loadHandled());
  const outbox = new Outbox(http, agentId, session, allowsClear);
  const toolCalls = new ToolCalls(http, agentId, session, allowsClear);
  return {
    parts: {
      agentId,
      http,
      session,
      outbox,
      toolCalls,
      approvals: new Approvals(session, outbox, agentId, allowsClear),
      socket,
    },
    pins,
    save: () => lessons.save(),
    enter: (conversationId) => lessons.enter(conversationId),
  };
}

/** Says to the service what this program can do. */
async function publishManifest(
  { agentId, manifest }: AgentOptions,
  http: Http,
  signal: AbortSignal,
): Promise<void> {
  if (!manifest) return;
  const path = `/agents/${agentId}`;
  const shown = await http.data<{ manifest?: JsonObject | null }>({ method: "GET", path, signal });
  if (shown.manifest && clearContent(shown.manifest) === clearContent(manifest)) return;
  const body = { manifest };
  await http.data({ method: "PATCH", path, body, repeatable: true, signal });
}

const KEY_CHECK_MS = 24 * 3_600_000;

/** Checks the keys that are held. A key is never replaced in silence. */
async function checkKeys(
  http: Http,
  agentId: string,
  held: readonly KeyPair[],
  logger: Logger,
  signal: AbortSignal,
): Promise<KeyPair[]> {
  for (const pair of held) {
    const mismatch = await checkKey(http, agentId, pair, signal);
    if (!mismatch) {
      await renewIfEnding(http, agentId, pair, logger, signal);
      // The key that fits signs. The others open secrets that were wrapped for them.
      return [pair, ...held.filter((each) => each !== pair)];
    }
    const expected = mismatch.params["expected_key_ids"] as readonly string[] | undefined;
    if (expected?.length && pair === held.at(-1)) throw mismatch;
  }
  if (held[0]) await registerKey(http, agentId, held[0], signal);
  return [...held];
}

/**
 * A new token ends the key of before in a week, unless it is registered anew. A key that somebody
 * has replaced by another one is left as it is.
 */
async function renewIfEnding(
  http: Http,
  agentId: string,
  pair: KeyPair,
  logger: Logger,
  signal: AbortSignal,
): Promise<void> {
  const path = `/agents/${agentId}/keys`;
  const { keys } = await http.data<AgentKeys>({ method: "GET", path, signal });
  const current = keys.find((key) => key.current);
  if (current?.key_id === hex(pair.keyId)) return;
  if (current) {
    logger.warn("this agent's key has been replaced, and ends soon", {
      key_id: hex(pair.keyId),
      current_key_id: current.key_id,
    });
    return;
  }
  await registerKey(http, agentId, pair, signal);
  logger.info("this agent's key was about to end, and is registered anew");
}

/** Looks once a day whether the key is about to end. */
function watchKeys(check: () => Promise<unknown>, logger: Logger, signal: AbortSignal): void {
  const look = (): void => {
    check().catch((error: unknown) => {
      logger.error("the agent's key could not be checked", { name: (error as Error).name });
    });
  };
  const timer = setInterval(look, KEY_CHECK_MS);
  // A look keeps no process alive.
  (timer as { unref?: () => void }).unref?.();
  signal.addEventListener("abort", () => clearInterval(timer), { once: true });
}

/** Null if the server knows this key for the agent's. */
async function checkKey(
  http: Http,
  agentId: string,
  pair: KeyPair,
  signal: AbortSignal,
): Promise<AgentKeysMismatch | null> {
  const path = `/agents/${agentId}/keys/check`;
  const body = { key_id: hex(pair.keyId) };
  try {
    await http.data({ method: "POST", path, body, repeatable: true, signal });
    return null;
  } catch (error) {
    if (error instanceof AgentKeysMismatch) return error;
    throw error;
  }
}

async function registerKey(
  http: Http,
  agentId: string,
  pair: KeyPair,
  signal: AbortSignal,
): Promise<void> {
  const publicKey = base64(pair.publicKey);
  const signingPublicKey = base64(pair.signingPublicKey);
  const timestamp = new Date().toISOString();
  const text = ["keys-register", agentId, publicKey, signingPublicKey, timestamp].join("|");
  await http.data({
    method: "POST",
    path: `/agents/${agentId}/keys/register`,
    body: {
      public_key: publicKey,
      signing_public_key: signingPublicKey,
      timestamp,
      signature: base64(await sign(pair.signing, new TextEncoder().encode(text))),
      schemes: ["bp1"],
    },
    repeatable: true,
    signal,
  });
}

interface LoadedTrust {
  readonly pins: Trust;
  readonly store: PinStore | null;
  readonly marks: Texts<EpochMarks>;
}

async function loadTrust(
  options: AgentOptions,
  self: Principal,
  keys: readonly KeyPair[],
  logger: Logger,
): Promise<LoadedTrust> {
  const { pins: where, trust } = options;
  const own = keys.map((pair) => hex(pair.keyId));
  const store = typeof where === "string" ? filePins(where) : (where ?? null);
  if (!store) {
    const text = "no pin store: this start is a first contact with everybody";
    if (options.key !== undefined) logger.warn(text);
    return { pins: new Trust(self, trust, own), store, marks: new Texts() };
  }
  const stored = await store.load();
  const pins = new Trust(self, trust, own, stored?.pins ?? null);
  return { pins, store, marks: Texts.of(stored?.marks ?? {}) };
}

/** Who is signed in, with which keys. */
import {
  BlindpipeError,
  Client,
  type ClientOptions,
  type DeviceKeys,
  generateProtectionPassword,
  isOutage,
} from "@blindpipe/client";
import { open as openChats, close as closeChats, notice, resync } from "./chats.js";
import * as cache from "./cache.js";
import * as line from "./line.js";
import { phase } from "./phase.js";
import { embedder, isWidget } from "./place.js";
import * as push from "./push.js";
import * as storage from "./storage.js";
import { tools } from "./tools.js";
import { learnings } from "./trust.js";
import { fetchWithUploads } from "./uploads.js";

let userId: string | null = null;
/** The account's password of this sign-in, which may not protect the keys. Gone after the set-up. */
let accountPassword: string | undefined;

function options<More extends object>(deviceId: string, more: More): ClientOptions & More {
  return {
    ...more,
    url: location.origin,
    fetch: fetchWithUploads,
    deviceId,
    deviceName: browserName(),
    platform: "web",
    // A page around the widget could lay something over the question.
    tools: isWidget ? {} : tools,
    store: storage.learnedStore(),
    onTrustChanged: () => (learnings.value += 1),
    hooks: {
      key_changed: ({ type, principal_id, conversation_id }) => notice({ type, principal_id, conversation_id }),
      not_rotated: ({ conversation_id }) =>
        notice({ type: "not_rotated", principal_id: null, conversation_id }),
      caught_up: line.found,
      disconnected: line.lost,
      resync,
    },
  } as ClientOptions & More;
}

function browserName(): string {
  const name = /Firefox|Edg|Chrome|Safari/.exec(navigator.userAgent)?.[0] ?? "Browser";
  const where = embedder();
  return `${name === "Edg" ? "Edge" : name}${where ? ` (${where})` : ""}`;
}

/** A reload goes on with the session of the cookie. What the cache has is shown before the service answers. */
export async function start(): Promise<void> {
  const kept = await cache.load();
  if (kept && (await storage.readKeys(kept.userId))) {
    return enter(await Client.resumeOffline(options(await ownDeviceId(), {}), kept));
  }
  for (;;) {
    try {
      return await enter(await Client.resume(options(await ownDeviceId(), {})));
    } catch (error) {
      if (!(error instanceof BlindpipeError)) throw error;
      phase.value = { is: isOutage(error) ? "away" : "signed-out" };
      if (phase.value.is === "signed-out") return void (await cache.erase());
      await line.waitForLine();
    }
  }
}

const ownDeviceId = (): Promise<string> => storage.deviceId(() => `web-${crypto.randomUUID()}`);

async function enter(client: Client): Promise<void> {
  userId = client.userId;
  await cache.eraseUnlessOf(userId);
  const keys = await storage.readKeys(userId);
  if (!keys) {
    phase.value = { is: "without-keys", client, hasBackup: await hasBackup(client) };
    return;
  }
  client.devices.useKeys(keys);
  ready(client);
}

/** A device with keys has backed them up. */
async function hasBackup(client: Client): Promise<boolean> {
  return (await client.devices.list()).some((device) => device.has_keys);
}

function ready(client: Client): void {
  phase.value = { is: "ready", client };
  void openChats(client, signedOutElsewhere);
  // Notifications wait for nothing else, and nothing waits for them.
  void push.renew(client).catch(() => {});
}

function signedOutElsewhere(): void {
  void cache.erase();
  phase.value = { is: "signed-out" };
}

export interface Credentials {
  readonly email: string;
  readonly password: string;
  readonly turnstileToken: string;
}

export async function login(credentials: Credentials): Promise<void> {
  accountPassword = credentials.password;
  await enter(await Client.login(options(await ownDeviceId(), credentials)));
}

export async function loginWithCode(email: string, code: string): Promise<void> {
  await enter(await Client.loginWithCode(options(await ownDeviceId(), { email, code })));
}

/**
 * Waits for the person to choose a passkey: beside the field for the e-mail, or in a dialog of the browser. Ends without
 * a sign-in when the signal aborts, or the person does not choose.
 */
export async function loginWithPasskey(autofill: boolean, signal: AbortSignal): Promise<void> {
  const client = await Client.signInWithPasskey(options(await ownDeviceId(), { autofill, signal }));
  if (client) await enter(client);
}

export async function sendCode(email: string, scene: "register" | "login", turnstileToken: string): Promise<void> {
  await Client.sendCode(options(await ownDeviceId(), { email, scene, turnstileToken }));
}

export async function register(
  person: Credentials & { readonly code: string; readonly displayName: string },
): Promise<void> {
  accountPassword = person.password;
  const locale = navigator.language;
  await enter(await Client.register(options(await ownDeviceId(), { ...person, locale })));
}

export const newProtectionPassword = generateProtectionPassword;

/** Makes keys for this browser, or restores earlier ones. Throws `DecryptError` for a wrong password. */
export async function setUpKeys(password: string, mode: "create" | "restore"): Promise<void> {
  const now = phase.value;
  if (now.is !== "without-keys") return;
  const { devices, userId } = now.client;
  const keys: DeviceKeys =
    mode === "create" ? await devices.create(password, { accountPassword }) : await devices.restore(password);
  accountPassword = undefined;
  await storage.writeKeys(userId, keys);
  ready(now.client);
}

export async function logout(): Promise<void> {
  const now = phase.value;
  closeChats();
  await cache.erase();
  // The keys go before anything that waits for the network.
  if (userId) await storage.forget(userId);
  await push.forget().catch(() => {});
  if (now.is === "ready" || now.is === "without-keys") await now.client.account.logout().catch(() => {});
  phase.value = { is: "signed-out" };
}

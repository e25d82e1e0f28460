/** Notifications while the app is closed: the browser's push service wakes its worker, which says that something waits. */
import { BlindpipeError, type Client } from "@blindpipe/client";
import { chooseWorker } from "./shell.js";
import * as storage from "./storage.js";

/** `denied`: the person has told the browser so, and only there it can be changed. */
export type PushState = "unsupported" | "denied" | "off" | "on";

const isSupported = (): boolean =>
  "serviceWorker" in navigator && "PushManager" in globalThis && "Notification" in globalThis;

async function registration(): Promise<ServiceWorkerRegistration | undefined> {
  return isSupported() ? navigator.serviceWorker.getRegistration("/app") : undefined;
}

async function subscription(): Promise<PushSubscription | null> {
  return (await (await registration())?.pushManager.getSubscription()) ?? null;
}

function bytes(base64url: string): Uint8Array<ArrayBuffer> {
  const text = atob(base64url.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(text, (sign) => sign.charCodeAt(0));
}

export async function state(client: Client): Promise<PushState> {
  if (!(await registration())) return "unsupported";
  if (Notification.permission === "denied") return "denied";
  if (!(await subscription())) return "off";
  return (await isKnown(client)) ? "on" : "off";
}

/** Whether the service has this browser's subscription. */
async function isKnown(client: Client): Promise<boolean> {
  try {
    await client.devices.subscription();
    return true;
  } catch (error) {
    if (error instanceof BlindpipeError && error.code === "NOT_FOUND") return false;
    throw error;
  }
}

/** Asks the browser, and subscribes. Returns the state after it. */
export async function turnOn(client: Client): Promise<PushState> {
  const worker = await registration();
  if (!worker) return "unsupported";
  const answer = await Notification.requestPermission();
  if (answer !== "granted") return answer === "denied" ? "denied" : "off";
  await subscribe(client, worker);
  return "on";
}

async function subscribe(client: Client, worker: ServiceWorkerRegistration): Promise<void> {
  const key = bytes(await client.devices.pushKey());
  const before = await worker.pushManager.getSubscription();
  // The service has another key after a change of its secret.
  if (before && !isOf(before, key)) await before.unsubscribe();
  const subscribed = await worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
  const { endpoint, keys } = subscribed.toJSON();
  await client.devices.subscribe({
    endpoint: endpoint ?? subscribed.endpoint,
    keys: { p256dh: keys?.["p256dh"] ?? "", auth: keys?.["auth"] ?? "" },
  });
}

function isOf({ options }: PushSubscription, key: Uint8Array): boolean {
  const own = new Uint8Array(options.applicationServerKey ?? new ArrayBuffer(0));
  return own.length === key.length && own.every((byte, n) => byte === key[n]);
}

/** Tells the service again at each start: a subscription ends with its session, and its address may change. */
export async function renew(client: Client): Promise<void> {
  const worker = await registration();
  if (!worker || !(await worker.pushManager.getSubscription())) return;
  await subscribe(client, worker);
}

/** What notifications show: that something waits, what it says, or that with buttons. */
export type PushWords = "none" | "words" | "buttons";

export async function pushWords(): Promise<PushWords> {
  const words = await storage.readNotificationWords();
  if (!words) return "none";
  return words.canDecide ? "buttons" : "words";
}

export async function setPushWords(client: Client, wanted: PushWords): Promise<void> {
  const { userId } = client;
  await storage.writeNotificationWords(wanted === "none" ? null : { userId, canDecide: wanted === "buttons" });
  await chooseWorker();
}

export async function turnOff(client: Client): Promise<PushState> {
  if (await isKnown(client)) await client.devices.unsubscribe();
  await forget();
  return "off";
}

/** Ends this browser's subscription. The next person to sign in is not woken by it. */
export async function forget(): Promise<void> {
  const hadWords = (await pushWords()) !== "none";
  await storage.writeNotificationWords(null);
  if (hadWords) await chooseWorker();
  await (await subscription())?.unsubscribe();
}

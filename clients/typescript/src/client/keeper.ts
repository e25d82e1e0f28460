/** The knowledge of a person's device: of this run, and of earlier runs out of its store. */
import type { Handled } from "../core/session.js";
import type { EpochMarks } from "../e2ee/room.js";
import { type Entries, Texts } from "../e2ee/texts.js";
import type { LoadedPins } from "../e2ee/trust.js";
import { errorName } from "../errors.js";
import type { HookCaller, Logger } from "../hooks.js";
import { KEEP_RETRY_MS, Lessons } from "../stores/lessons.js";
import {
  type DeviceState,
  type HeldKeys,
  OtherOwner,
  type Store,
  type StoreOwner,
  keepsDevice,
  storeKeys,
} from "../stores/store.js";
import { sleep } from "../transport/wait.js";
import type { StoredSession } from "./account.js";

/** The knowledge of earlier runs. */
export interface EarlierRuns {
  readonly pins: LoadedPins | null;
  readonly marks: Entries<EpochMarks>;
  readonly handled: Iterable<Handled>;
}

export class Keeper {
  readonly lessons: Lessons;
  /** The store is known to be this person's. */
  #isOwn = false;
  #device: DeviceState | null = null;
  /** Whose sign-in was kept before. */
  #owner: StoreOwner | null = null;
  /** The store does not keep the newest sign-in yet. */
  #isDeviceDue = false;
  /** Messages of the event that is shown. */
  #shown: Handled[] = [];

  constructor(
    readonly store: Store | null,
    private readonly hooks: HookCaller,
    private readonly logger: Logger,
  ) {
    this.lessons = new Lessons(store, hooks, logger);
  }

  /** The sign-in and the keys of an earlier run. */
  async device(): Promise<DeviceState | null> {
    if (keepsDevice(this.store)) this.#device = await this.store.loadDevice();
    this.#owner = this.#device?.session ?? null;
    return this.#device;
  }

  /** The knowledge of this person's device. Throws if the store is another's. */
  async load(owner: StoreOwner): Promise<EarlierRuns | null> {
    if (!this.store) return null;
    const { userId, deviceId } = this.#owner ?? owner;
    if (userId !== owner.userId || deviceId !== owner.deviceId) throw new OtherOwner();
    const trust = await this.store.load(owner);
    this.#isOwn = true;
    if (this.#isDeviceDue) await this.#saveDevice();
    const handled = await this.store.loadHandled();
    return { pins: trust?.pins ?? null, marks: trust?.marks ?? new Texts(), handled };
  }

  /** Keeps the sign-in, once it is known that the store is this person's. */
  async keepSession(session: StoredSession): Promise<void> {
    if (!keepsDevice(this.store)) return;
    this.#device = { keys: null, ...this.#device, session };
    this.#isDeviceDue = true;
    // A sign-in that is not kept goes on until the end of the program.
    if (this.#isOwn) await this.#isDeviceSaved();
  }

  /** Throws if the keys could not be kept. */
  async keepKeys(keys: HeldKeys): Promise<void> {
    if (!keepsDevice(this.store) || !this.#device) return;
    this.#device = { ...this.#device, keys: storeKeys(keys) };
    this.#isDeviceDue = true;
    await this.#saveDevice();
  }

  async #saveDevice(): Promise<void> {
    if (!keepsDevice(this.store) || !this.#device) return;
    const device = this.#device;
    await this.store.saveDevice(device);
    if (device === this.#device) this.#isDeviceDue = false;
  }

  async #isDeviceSaved(): Promise<boolean> {
    if (!this.#isDeviceDue) return true;
    try {
      await this.#saveDevice();
      return true;
    } catch (error) {
      this.logger.error("the sign-in could not be stored", { name: errorName(error) });
      this.hooks.call("store_failed");
      return false;
    }
  }

  /** An event is shown that brings this message. */
  showing(handled: Handled): void {
    this.#shown.push(handled);
  }

  /** The event was shown, and its messages are not to be shown again. */
  shown(): void {
    for (const handled of this.#shown) this.lessons.handled(handled);
    this.#shown = [];
  }

  /** Keeps everything; false if something could not be kept. */
  async save(): Promise<boolean> {
    const isDeviceSaved = await this.#isDeviceSaved();
    return (await this.lessons.save()) && isDeviceSaved;
  }
}

/** Acknowledges what was shown, once its lessons are kept. */
export class Acks {
  #cursor: string | null = null;
  #running: Promise<void> | null = null;
  /** Calls that earlier events have begun. Null once they have ended. */
  #calls: Promise<void> | null = null;
  readonly #ending = new AbortController();

  constructor(
    private readonly keep: () => Promise<boolean>,
    private readonly send: (cursor: string) => void,
  ) {}

  /** The events from now on are acknowledged after the end of this. It never rejects. */
  after(call: Promise<void>): void {
    const calls = this.#calls ? this.#calls.then(() => call) : call;
    this.#calls = calls;
    void calls.then(() => {
      if (this.#calls === calls) this.#calls = null;
    });
  }

  /** Everything up to this cursor was shown. */
  add(cursor: string): void {
    if (!this.#calls) return this.#add(cursor);
    void this.#calls.then(() => {
      if (!this.#ending.signal.aborted) this.#add(cursor);
    });
  }

  #add(cursor: string): void {
    this.#cursor = cursor;
    this.#running ??= this.#run().finally(() => (this.#running = null));
  }

  async #run(): Promise<void> {
    for (let cursor; (cursor = this.#cursor) !== null; ) {
      if (await this.keep()) {
        if (this.#cursor === cursor) this.#cursor = null;
        this.send(cursor);
      } else if (this.#ending.signal.aborted) return;
      else await sleep(KEEP_RETRY_MS, this.#ending.signal).catch(() => {});
    }
  }

  /** Waits for what was shown. A store that fails once more is not waited for. */
  async end(): Promise<void> {
    this.#ending.abort();
    await this.#running;
  }
}

/** The events that wait in this process. The rest of a backlog stays on the server. */

const MAX_WAITING_EVENTS = 2_000;
const MAX_WAITING_BYTES = 8 * 1024 * 1024;
/** A connection that was left is made again below this part of the bounds. */
const RESUME_BELOW_PART = 0.1;

export class Load {
  #events = 0;
  #bytes = 0;
  #onRoom: (() => void)[] = [];

  /** Nothing more is to be read. */
  get isFull(): boolean {
    return this.#events >= MAX_WAITING_EVENTS || this.#bytes >= MAX_WAITING_BYTES;
  }

  add(bytes: number): void {
    this.#events += 1;
    this.#bytes += bytes;
  }

  remove(bytes: number): void {
    this.#events -= 1;
    this.#bytes -= bytes;
    const isLow =
      this.#events < MAX_WAITING_EVENTS * RESUME_BELOW_PART &&
      this.#bytes < MAX_WAITING_BYTES * RESUME_BELOW_PART;
    if (isLow) this.release();
  }

  /** None of the events waits any more. */
  clear(): void {
    [this.#events, this.#bytes] = [0, 0];
    this.release();
  }

  /** Resolves at once, or when few enough events wait. */
  room(): Promise<void> {
    if (!this.isFull) return Promise.resolve();
    return new Promise((resolve) => this.#onRoom.push(resolve));
  }

  /** Lets all go that wait for room: this is the end. */
  release(): void {
    this.#onRoom.splice(0).forEach((resolve) => resolve());
  }
}

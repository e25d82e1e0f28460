/** The places to begin at after cursors that are of no use any more. */

/** After the last acknowledgement, with the oldest event, or with what comes from now on. */
export type Begin = "acknowledged" | "oldest" | "head";

export class Resyncs {
  /** Whether the cursor that was refused was named by this client. */
  hasResumed = false;
  /** Since a cursor was of use. */
  #count = 0;

  /** Each further place asks less of the server, so that nobody asks for ever. */
  next(): Begin {
    const count = this.#count++;
    if (count === 0 && this.hasResumed) return "acknowledged";
    return count < 2 ? "oldest" : "head";
  }

  /** The last place was of use. */
  settled(): void {
    this.#count = 0;
  }
}

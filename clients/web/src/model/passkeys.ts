/** Whether this page may ask for passkeys. */
import { supportsPasskeyAutofill, supportsPasskeys } from "@blindpipe/client";
import { isWidget } from "./place.js";

/** A frame of another page gets none. */
export const hasPasskeys = !isWidget && supportsPasskeys();

/** Whether the browser offers passkeys beside the field for the e-mail. */
export async function offersPasskeys(): Promise<boolean> {
  return hasPasskeys && (await supportsPasskeyAutofill());
}

/**
 * The proof that a person signs in. A foreign script makes it, in a frame of an origin of its own: here it could use every
 * key. The service names that origin.
 */
import { signal } from "@preact/signals";
import { t } from "../i18n/first.js";

/** The development cluster takes this word, and no other service does. */
const DEVELOPMENT_TOKEN = "dev-pass";

/** A check that waits for the person. */
export interface Check {
  readonly origin: string;
  /** Without a token the check has failed, or the person has left it. */
  readonly end: (token: string | null) => void;
}

export const check = signal<Check | null>(null);

/** The origin of the check, or the stand-in of the development cluster. */
async function way(): Promise<string | null> {
  const response = await fetch("/app/settings.json");
  if (!response.ok) return null;
  const { human_check: found } = (await response.json()) as { human_check?: unknown };
  return typeof found === "string" ? found : null;
}

/** A proof for one call. */
export async function humanCheck(): Promise<string> {
  const found = await way();
  if (found === null) throw new Error(t("no_human_check"));
  if (found === "stand-in") return DEVELOPMENT_TOKEN;
  const token = await new Promise<string | null>((resolve) => {
    const end = (made: string | null): void => {
      check.value = null;
      resolve(made);
    };
    check.value = { origin: found, end };
  });
  if (token === null) throw new Error(t("human_check_failed"));
  return token;
}

/** The words of the person's language: German where the browser prefers it, else English. */
import { de } from "./de.js";
import { en, type Texts } from "./en.js";
import { withoutDirections } from "../parts/visible.js";

const isGerman = navigator.languages.find((tag) => /^(de|en)\b/.test(tag))?.startsWith("de") ?? false;
export const language = isGerman ? "de" : "en";
const texts: Texts = isGerman ? de : en;

/** The harm that a scope can do, by its sensitivity. */
export const HARM_TEXTS = { low: "harm_low", medium: "harm_medium", high: "harm_high" } as const;

export function t(name: keyof Texts, filled: Readonly<Record<string, string | number>> = {}): string {
  return texts[name].replace(/\{(\w+)\}/g, (_, key: string) => withoutDirections(String(filled[key] ?? "")));
}

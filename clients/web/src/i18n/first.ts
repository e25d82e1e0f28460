/** The words before the sign-in. The scripts of the sign-in take theirs from here alone, so that no others come ahead of it. */
import { firstDe } from "./first-de.js";
import { firstEn, type FirstTexts } from "./first-en.js";
import { withoutDirections } from "../parts/visible.js";

/** German where the browser prefers it, else English. */
export const language = navigator.languages.find((tag) => /^(de|en)\b/.test(tag))?.startsWith("de") ? "de" : "en";
export const firstTexts: FirstTexts = language === "de" ? firstDe : firstEn;

export type Filled = Readonly<Record<string, string | number>>;

export function fill(text: string, filled: Filled): string {
  return text.replace(/\{(\w+)\}/g, (_, key: string) => withoutDirections(String(filled[key] ?? "")));
}

export function t(name: keyof FirstTexts, filled: Filled = {}): string {
  return fill(firstTexts[name], filled);
}

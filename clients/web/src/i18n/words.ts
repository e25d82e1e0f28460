/** The words of the person's language. */
import { de } from "./de.js";
import { en, type LaterTexts } from "./en.js";
import type { FirstTexts } from "./first-en.js";
import { fill, type Filled, firstTexts, language } from "./first.js";

export type Texts = FirstTexts & LaterTexts;

const texts: Texts = { ...firstTexts, ...(language === "de" ? de : en) };

/** The harm that a scope can do, by its sensitivity. */
export const HARM_TEXTS = { low: "harm_low", medium: "harm_medium", high: "harm_high" } as const;

export function t(name: keyof Texts, filled: Filled = {}): string {
  return fill(texts[name], filled);
}

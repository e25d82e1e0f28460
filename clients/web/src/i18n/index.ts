/** The words of the person's language: German where the browser prefers it, else English. */
import { de } from "./de.js";
import { en, type Texts } from "./en.js";
import { withoutDirections } from "../parts/visible.js";

const isGerman = navigator.languages.find((tag) => /^(de|en)\b/.test(tag))?.startsWith("de") ?? false;
export const language = isGerman ? "de" : "en";
document.documentElement.lang = language;
const texts: Texts = isGerman ? de : en;

export function t(name: keyof Texts, filled: Readonly<Record<string, string | number>> = {}): string {
  return texts[name].replace(/\{(\w+)\}/g, (_, key: string) => withoutDirections(String(filled[key] ?? "")));
}

// Hours are written as in the person's region.
const region = navigator.language;
const shortTime = new Intl.DateTimeFormat(region, { hour: "2-digit", minute: "2-digit" });
const longTime = new Intl.DateTimeFormat(region, { dateStyle: "medium", timeStyle: "short" });

/** The time of day for today, and the date before. */
export function time(iso: string): string {
  const moment = new Date(iso);
  const isToday = moment.toDateString() === new Date().toDateString();
  return (isToday ? shortTime : longTime).format(moment);
}

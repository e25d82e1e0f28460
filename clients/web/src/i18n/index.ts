/** Words and times, as the person's browser wants them. */
export { HARM_TEXTS, t, type Texts } from "./words.js";

/** Makes something when it is first wanted. */
function once<T>(make: () => T): () => T {
  let made: T | undefined;
  return () => (made ??= make());
}

// Hours are written as in the person's region.
const region = navigator.language;
// A format costs a slow phone some milliseconds, and the sign-in needs none.
const shortTime = once(() => new Intl.DateTimeFormat(region, { hour: "2-digit", minute: "2-digit" }));
const longTime = once(() => new Intl.DateTimeFormat(region, { dateStyle: "medium", timeStyle: "short" }));

const wholePercent = once(() => new Intl.NumberFormat(region, { style: "percent", maximumFractionDigits: 0 }));

/** A share from 0 to 1. It says 100 % at the end alone. */
export const percent = (share: number): string => wholePercent().format(Math.floor(share * 100) / 100);

/** The time of day for today, and the date before. */
export function time(iso: string): string {
  const moment = new Date(iso);
  const isToday = moment.toDateString() === new Date().toDateString();
  return (isToday ? shortTime() : longTime()).format(moment);
}

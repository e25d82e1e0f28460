/** Search tokens: keyed hashes of words, by which the service finds messages that it cannot read. */
import { EMPTY, hex } from "./bytes.js";
import type { EpochKey } from "./epoch.js";
import { hkdf } from "./primitives.js";

/** The most tokens that the service takes with a message. */
export const MAX_MESSAGE_TOKENS = 64;
/** The most tokens that the service takes in a search. */
export const MAX_SEARCH_TOKENS = 16;

const TOKEN_BYTES = 16;
const OF_WORD = /^[\p{L}\p{M}\p{N}]$/u;
/** Thai and Lao, Myanmar, Khmer, kana, and Han: scripts that put no spaces between words. */
const UNSPACED =
  /^[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u{20000}-\u{3ffff}]$/u;

/**
 * The words of a text in the form in which they are compared, each once, in their order. A word is a
 * run of letters, marks and digits. Scripts that put no spaces between words give each pair of
 * neighbours as a word.
 */
export function searchWords(text: string): string[] {
  const found: string[] = [];
  let run: string[] = [];
  for (const letter of [...fold(text), " "]) {
    const isWord = OF_WORD.test(letter);
    const continues = isWord && UNSPACED.test(run.at(-1) ?? letter) === UNSPACED.test(letter);
    if (run.length > 0 && !continues) {
      found.push(...parts(run));
      run = [];
    }
    if (isWord) run.push(letter);
  }
  return [...new Set(found)];
}

function parts(run: readonly string[]): string[] {
  if (!UNSPACED.test(run[0]!) || run.length === 1) return [run.join("")];
  return run.slice(1).map((letter, before) => run[before]! + letter);
}

/**
 * Upper case and then lower case by code point. The languages of the clients agree on it, and on
 * nothing closer to Unicode's case folding.
 */
function fold(text: string): string {
  const upper = [...text.normalize("NFKC")].map((letter) => letter.toUpperCase()).join("");
  const lower = [...upper].map((letter) => letter.toLowerCase()).join("");
  return lower.normalize("NFKC");
}

/**
 * The tokens of words in the epoch of `key`, as 32 digits of hex; null for the lane of an `addressed`
 * agent.
 */
export async function searchTokens(
  key: EpochKey,
  words: readonly string[],
): Promise<string[] | null> {
  const search = await key.search();
  if (!search) return null;
  const bytes = new TextEncoder();
  const token = async (word: string): Promise<string> =>
    hex(await hkdf(search, EMPTY, bytes.encode(word), TOKEN_BYTES));
  return Promise.all(words.map(token));
}

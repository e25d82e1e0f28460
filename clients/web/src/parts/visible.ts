/** Text of others, where a hidden character could make another text of it. */

const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const UNSEEN =
  /[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]/g;

/** Shows controls of direction and characters without width as escapes. */
export function visible(text: string): string {
  return text.replace(UNSEEN, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A name inside a sentence must not turn the words around it. */
export function withoutDirections(text: string): string {
  return text.replace(DIRECTIONS, "");
}

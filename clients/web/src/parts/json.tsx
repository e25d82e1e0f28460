/** Arguments, as they are: nothing is hidden, shortened or made into markup. */
import type { JSX } from "preact";

export function Json({ value }: { readonly value: object }): JSX.Element | null {
  if (Object.keys(value).length === 0) return null;
  return (
    <pre class="json" tabIndex={0}>
      {visible(JSON.stringify(value, null, 2))}
    </pre>
  );
}

/** Controls of direction and characters without width could make other arguments of these. */
function visible(text: string): string {
  return text.replace(
    /[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]/g,
    (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** Arguments, as they are: nothing is hidden, shortened or made into markup. */
import type { JSX } from "preact";
import { visible } from "./visible.js";

export function Json({ value }: { readonly value: object }): JSX.Element | null {
  if (Object.keys(value).length === 0) return null;
  return (
    <pre class="json" tabIndex={0}>
      {visible(JSON.stringify(value, null, 2))}
    </pre>
  );
}

/** A text for another device's camera. It is fetched when it is first wanted. */
import type { JSX } from "preact";
import { encode } from "uqr";

/** The margin that readers need, in modules. */
const QUIET_ZONE = 4;

export interface QrProps {
  readonly text: string;
  readonly label: string;
}

/** Dark on light in every theme: many readers take nothing else. */
export function Qr({ text, label }: QrProps): JSX.Element {
  const { data, size } = encode(text, { ecc: "M", border: QUIET_ZONE });
  const path = data
    .flatMap((row, y) => row.map((isDark, x) => (isDark ? `M${x} ${y}h1v1h-1z` : "")))
    .join("");
  return (
    <svg class="qr" role="img" aria-label={label} viewBox={`0 0 ${size} ${size}`} shape-rendering="crispEdges">
      <rect width={size} height={size} fill="#fff" />
      <path d={path} fill="#000" />
    </svg>
  );
}

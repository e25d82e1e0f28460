/** The pages of the settings, as their addresses name them. */
export const SECTIONS = [
  "profile",
  "sign-in",
  "devices",
  "notifications",
  "offline",
  "blocks",
  "grants",
  "reads",
] as const;
export type Section = (typeof SECTIONS)[number];

export function isSection(name: string | undefined): name is Section {
  return SECTIONS.includes(name as Section);
}

/** The address behind `#`: which screen is shown. */
import { signal } from "@preact/signals";
import { isSection, type Section } from "./screens/settings/sections.js";

export type Route =
  | { readonly screen: "conversations" }
  | { readonly screen: "conversation"; readonly id: string }
  | { readonly screen: "approvals" }
  | { readonly screen: "agents" }
  | { readonly screen: "agent"; readonly id: string }
  | { readonly screen: "agent-link"; readonly agentId: string; readonly keyId: string | undefined }
  | { readonly screen: "settings"; readonly section: Section | null };

export const route = signal<Route>(parse(location.hash));

addEventListener("hashchange", () => (route.value = parse(location.hash)));

function parse(hash: string): Route {
  const [, screen, first, second] = hash.split("/").map(decodeURIComponent);
  if (screen === "c" && first) return { screen: "conversation", id: first };
  if (screen === "a" && first) return { screen: "agent-link", agentId: first, keyId: second };
  if (screen === "agents" && first) return { screen: "agent", id: first };
  if (screen === "approvals" || screen === "agents") return { screen };
  if (screen === "settings") return { screen, section: isSection(first) ? first : null };
  return { screen: "conversations" };
}

export function go(path: string): void {
  location.hash = `#/${path}`;
}

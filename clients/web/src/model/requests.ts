/** What waits for the person: approvals in all conversations, and tool calls of the moment. */
import { computed, signal } from "@preact/signals";
import type { ApprovalRequest, Client, components, ToolRequest } from "@blindpipe/client";

export type Grant = components["schemas"]["Grant"];

/** A tool call that is shown. */
export interface ToolCallShown {
  readonly request: ToolRequest;
  /** The moment of the page's own clock at which it counts as denied. */
  readonly endsAt: number;
  /** How long it may wait in all, in milliseconds. */
  readonly patience: number;
}

/** The newest first. */
export const approvals = signal<readonly ApprovalRequest[]>([]);
export const decided = signal<readonly ApprovalRequest[]>([]);
export const toolRequests = signal<readonly ToolCallShown[]>([]);
/** Scopes that agents hold, and that they ask for. */
export const grants = signal<readonly Grant[]>([]);
export const askedGrants = computed(() => grants.value.filter(({ status }) => status === "pending"));

const MAX_CLOSED_SHOWN = 20;

export async function refreshApprovals(client: Client): Promise<void> {
  approvals.value = await first(client.approvals("open"), Infinity);
  decided.value = await first(client.approvals("closed"), MAX_CLOSED_SHOWN);
}

async function first<T>(all: AsyncIterable<T>, count: number): Promise<T[]> {
  const found: T[] = [];
  for await (const one of all) {
    found.push(one);
    if (found.length >= count) break;
  }
  return found;
}

export async function refreshGrants(client: Client): Promise<void> {
  const open = new Set(["pending", "approved"]);
  const found: Grant[] = [];
  for await (const grant of client.grants()) if (open.has(grant.status)) found.push(grant);
  grants.value = found;
}

/** A clock that is wrong must not end a request early, nor keep it. */
export function show(request: ToolRequest): void {
  const { created_at, expires_at } = request.call;
  const patience = Date.parse(expires_at) - Date.parse(created_at);
  const left = Date.parse(expires_at) - Date.now();
  const isLikely = left > 0 && left <= patience;
  const shown = { request, patience, endsAt: performance.now() + (isLikely ? left : patience) };
  toolRequests.value = [...toolRequests.value, shown];
}

export function dismiss(requestId: string): void {
  toolRequests.value = toolRequests.value.filter(({ request }) => request.call.request_id !== requestId);
}

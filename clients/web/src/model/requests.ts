/** What waits for the person: approvals in all conversations, and tool calls of the moment. */
import { signal } from "@preact/signals";
import type { ApprovalRequest, Client, ToolRequest } from "@blindpipe/client";

/** The newest first. */
export const approvals = signal<readonly ApprovalRequest[]>([]);
export const decided = signal<readonly ApprovalRequest[]>([]);
export const toolRequests = signal<readonly ToolRequest[]>([]);

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

export function dismiss(request: ToolRequest): void {
  toolRequests.value = toolRequests.value.filter((one) => one !== request);
}

/** A person's agents: made, described, given tokens and webhooks. */
import type { JsonObject } from "../e2ee/content.js";
import type { components } from "../generated/openapi.js";
import type { Call, Http } from "../transport/http.js";

type Schemas = components["schemas"];
/** The log of deliveries, by status. */
export type DeliveryFilter = "pending" | "success" | "failed" | "exhausted";

export class Agents {
  constructor(private readonly http: Http) {}

  #call<T>(method: Call["method"], path: string, body?: object): Promise<T> {
    return this.http.data<T>({ method, path: `/agents${path}`, ...(body ? { body } : {}) });
  }

  /** Makes an agent. Its `token` is in this answer alone, and never shown again. */
  create(
    displayName: string,
    options: { readonly description?: string; readonly manifest?: JsonObject } = {},
  ): Promise<Schemas["CreatedAgent"]> {
    return this.#call("POST", "", { display_name: displayName, ...options });
  }

  /** The agents of this person. */
  list(): AsyncGenerator<Schemas["Agent"]> {
    return this.http.pages<Schemas["Agent"]>("/agents");
  }

  /** An agent: whole for its owner, its card for others. */
  get(agentId: string): Promise<Schemas["AgentView"]> {
    return this.#call("GET", `/${agentId}`);
  }

  /** Changes the agent's name or description. */
  update(
    agentId: string,
    changes: { readonly display_name?: string; readonly description?: string },
  ): Promise<Schemas["Agent"]> {
    return this.#call("PATCH", `/${agentId}`, changes);
  }

  /** Deletes an agent for good. */
  delete(agentId: string): Promise<Schemas["DeletedAgent"]> {
    return this.#call("DELETE", `/${agentId}`);
  }

  /** The public keys of an agent. */
  keys(agentId: string): Promise<Schemas["AgentKeys"]> {
    return this.#call("GET", `/${agentId}/keys`);
  }

  /** Ends the token and the keys of an agent at once, without another one. */
  revokeToken(agentId: string): Promise<Schemas["RevokedToken"]> {
    return this.#call("DELETE", `/${agentId}/token`);
  }

  /**
   * A new token. The old one ends after its grace; in an emergency at once, and the webhook is
   * suspended.
   */
  rotate(
    agentId: string,
    { emergency = false }: { readonly emergency?: boolean } = {},
  ): Promise<Schemas["RegeneratedToken"]> {
    return this.#call("POST", `/${agentId}/token/regenerate`, { emergency });
  }

  /** The webhook of an agent. */
  webhook(agentId: string): Promise<Schemas["Webhook"]> {
    return this.#call("GET", `/${agentId}/webhook`);
  }

  /**
   * Has events delivered to `url`, up to `maxEvents` in a call, 1 to 50. Without a secret, the
   * answer has a new one.
   */
  setWebhook(
    agentId: string,
    url: string,
    secret?: string,
    maxEvents = 1,
  ): Promise<Schemas["Webhook"]> {
    const body = { url, max_events: maxEvents };
    return this.#call("PUT", `/${agentId}/webhook`, secret ? { ...body, secret } : body);
  }

  /** Ends deliveries. */
  deleteWebhook(agentId: string): Promise<unknown> {
    return this.#call("DELETE", `/${agentId}/webhook`);
  }

  /** A new secret, in this answer alone. */
  rotateWebhookSecret(agentId: string): Promise<Schemas["Webhook"]> {
    return this.#call("POST", `/${agentId}/webhook/rotate-secret`);
  }

  /** Asks the receiver once more whether it is the agent's. */
  verifyWebhook(agentId: string): Promise<Schemas["Webhook"]> {
    return this.#call("POST", `/${agentId}/webhook/verify`);
  }

  /** Sends a delivery that means nothing. */
  testWebhook(agentId: string): Promise<unknown> {
    return this.#call("POST", `/${agentId}/webhook/test`);
  }

  /** The log of deliveries, the newest first. */
  deliveries(
    agentId: string,
    query: { readonly status?: DeliveryFilter } = {},
  ): AsyncGenerator<Schemas["WebhookDelivery"]> {
    return this.http.pages<Schemas["WebhookDelivery"]>(`/agents/${agentId}/deliveries`, query);
  }

  /** Delivers an event once more. */
  redeliver(agentId: string, deliveryId: string): Promise<Schemas["WebhookDelivery"]> {
    return this.#call("POST", `/${agentId}/deliveries/${deliveryId}/redeliver`);
  }
}

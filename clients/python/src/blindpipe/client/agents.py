"""A person's agents: made, described, given tokens and webhooks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from ..core.types import JsonObject
from ..transport.http import Call, Http, Method


class Agents:
    """The agents of one person."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def _call(self, method: Method, path: str, body: JsonObject | None = None) -> JsonObject:
        answered: JsonObject = await self._http.data(Call(method, f"/agents{path}", body=body))
        return answered

    async def create(
        self,
        display_name: str,
        *,
        description: str | None = None,
        manifest: Mapping[str, Any] | None = None,
    ) -> JsonObject:
        """Makes an agent. Its `token` is in this answer alone, and never shown again."""
        told = {"description": description, "manifest": dict(manifest) if manifest else None}
        given = {name: value for name, value in told.items() if value is not None}
        return await self._call("POST", "", {"display_name": display_name, **given})

    async def list(self) -> AsyncIterator[JsonObject]:
        """The agents of this person."""
        async for agent in self._http.pages("/agents"):
            yield agent

    async def get(self, agent_id: str) -> JsonObject:
        """An agent: whole for its owner, its card for others."""
        return await self._call("GET", f"/{agent_id}")

    async def update(self, agent_id: str, **changes: Any) -> JsonObject:
        """Changes `display_name` or `description`."""
        return await self._call("PATCH", f"/{agent_id}", changes)

    async def delete(self, agent_id: str) -> JsonObject:
        """Deletes an agent for good."""
        return await self._call("DELETE", f"/{agent_id}")

    async def keys(self, agent_id: str) -> JsonObject:
        """The public keys of an agent."""
        return await self._call("GET", f"/{agent_id}/keys")

    async def revoke_token(self, agent_id: str) -> JsonObject:
        """Ends the token and the keys of an agent at once, without another one."""
        return await self._call("DELETE", f"/{agent_id}/token")

    async def rotate(self, agent_id: str, *, emergency: bool = False) -> JsonObject:
        """A new token. The old one ends after its grace; in an emergency at once.

        An emergency also suspends the webhook.
        """
        path = f"/{agent_id}/token/regenerate"
        return await self._call("POST", path, {"emergency": emergency})

    async def webhook(self, agent_id: str) -> JsonObject:
        """The webhook of an agent."""
        return await self._call("GET", f"/{agent_id}/webhook")

    async def set_webhook(
        self, agent_id: str, url: str, secret: str | None = None, *, max_events: int = 1
    ) -> JsonObject:
        """Has events delivered to `url`. Without a secret, the answer has a new one.

        A call brings up to `max_events` events, 1 to 50.
        """
        body: JsonObject = {"url": url, "max_events": max_events}
        body |= {"secret": secret} if secret else {}
        return await self._call("PUT", f"/{agent_id}/webhook", body)

    async def delete_webhook(self, agent_id: str) -> JsonObject:
        """Ends deliveries."""
        return await self._call("DELETE", f"/{agent_id}/webhook")

    async def rotate_webhook_secret(self, agent_id: str) -> JsonObject:
        """A new secret, in this answer alone."""
        return await self._call("POST", f"/{agent_id}/webhook/rotate-secret")

    async def verify_webhook(self, agent_id: str) -> JsonObject:
        """Asks the receiver once more whether it is the agent's."""
        return await self._call("POST", f"/{agent_id}/webhook/verify")

    async def test_webhook(self, agent_id: str) -> JsonObject:
        """Sends a delivery that means nothing."""
        return await self._call("POST", f"/{agent_id}/webhook/test")

    async def deliveries(
        self, agent_id: str, *, status: str | None = None
    ) -> AsyncIterator[JsonObject]:
        """The log of deliveries, the newest first."""
        query = {"status": status}
        async for delivery in self._http.pages(f"/agents/{agent_id}/deliveries", query):
            yield delivery

    async def redeliver(self, agent_id: str, delivery_id: str) -> JsonObject:
        """Delivers an event once more."""
        return await self._call("POST", f"/{agent_id}/deliveries/{delivery_id}/redeliver")

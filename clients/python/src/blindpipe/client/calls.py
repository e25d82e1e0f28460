"""Calls that concern the account: profile, passkeys, relations, blocks, shares, limits, search."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from ..core.types import Grant, JsonObject
from ..errors import UsageError
from ..transport.http import Call, Http, Method


class AccountCalls:
    """The calls of a person that need no keys."""

    _http: Http

    async def request(
        self,
        method: Method,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str | int | None] | None = None,
    ) -> Any:
        """Any call of the API in this person's name; answers all fields of the answer."""
        # Without the slash, the path could lead the token to another host.
        if not path.startswith("/"):
            raise UsageError("a path begins with /")
        call = Call(method, path, query or {}, body=dict(body) if body is not None else None)
        return dict((await self._http.call(call)).body)

    async def _data(self, method: Method, path: str, body: JsonObject | None = None) -> JsonObject:
        answered: JsonObject = await self._http.data(Call(method, path, body=body))
        return answered

    async def profile(self) -> JsonObject:
        """The person's own account."""
        return await self._data("GET", "/users/me")

    async def update_profile(
        self, *, display_name: str | None = None, device_locale: str | None = None
    ) -> JsonObject:
        """Changes the name that others see, or the language of mails."""
        told = {"display_name": display_name, "device_locale": device_locale}
        body = {name: value for name, value in told.items() if value is not None}
        return await self._data("PATCH", "/users/me", body)

    async def change_password(self, current_password: str, new_password: str) -> JsonObject:
        """Another password for the account. It protects no keys."""
        body = {"current_password": current_password, "new_account_password": new_password}
        return await self._data("POST", "/users/me/password", body)

    async def change_email(self, email: str) -> JsonObject:
        """Mails a code to the new address. It needs a sign-in of the last 10 minutes."""
        return await self._data("POST", "/users/me/email", {"email": email})

    async def confirm_email(self, email: str, code: str) -> JsonObject:
        """Takes the new address, with the code that was mailed there."""
        return await self._data("POST", "/users/me/email/confirm", {"email": email, "code": code})

    async def delete_account(self) -> JsonObject:
        """Deletes the account with all that is its own, for good."""
        return await self._data("DELETE", "/users/me")

    async def passkeys(self) -> AsyncIterator[JsonObject]:
        """The passkeys of this account."""
        async for passkey in self._http.pages("/users/me/passkeys"):
            yield passkey

    async def begin_passkey(self) -> JsonObject:
        """The challenge of a new passkey; `public_key` is for `navigator.credentials.create`.

        It needs a sign-in of the last 10 minutes.
        """
        return await self._data("POST", "/users/me/passkeys/begin")

    async def add_passkey(
        self, challenge_id: str, credential: Mapping[str, Any], *, name: str | None = None
    ) -> JsonObject:
        """Adds the passkey that answers a challenge, as WebAuthn's JSON."""
        body: JsonObject = {"challenge_id": challenge_id, "credential": dict(credential)}
        body |= {"name": name} if name else {}
        return await self._data("POST", "/users/me/passkeys/complete", body)

    async def delete_passkey(self, passkey_id: str) -> JsonObject:
        """Deletes a passkey."""
        return await self._data("DELETE", f"/users/me/passkeys/{passkey_id}")

    async def relations(self) -> AsyncIterator[JsonObject]:
        """The agents that may write to this person."""
        async for relation in self._http.pages("/relations"):
            yield relation

    async def revoke_relation(self, relation_id: str) -> JsonObject:
        """Ends the relation with an agent at once."""
        return await self._data("DELETE", f"/relations/{relation_id}")

    async def blocks(self) -> AsyncIterator[JsonObject]:
        """The people and agents that this person has blocked."""
        async for block in self._http.pages("/users/me/blocks"):
            yield block

    async def block(self, principal_id: str) -> JsonObject:
        """Keeps somebody from opening conversations with this person."""
        return await self._data("PUT", f"/users/me/blocks/{principal_id}")

    async def unblock(self, principal_id: str) -> JsonObject:
        """Takes a block back."""
        return await self._data("DELETE", f"/users/me/blocks/{principal_id}")

    async def share(
        self,
        *,
        expires_at: datetime,
        file_id: str | None = None,
        agent_id: str | None = None,
        max_access_count: int | None = None,
    ) -> JsonObject:
        """Makes a link to a file's ciphertext, to an agent, or to this person without either."""
        body: JsonObject = {"expires_at": f"{expires_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.000Z"}
        if file_id is None and agent_id is None:
            body["contact"] = True
        told = {"file_id": file_id, "agent_id": agent_id, "max_access_count": max_access_count}
        body |= {name: value for name, value in told.items() if value is not None}
        return await self._data("POST", "/shares", body)

    async def open_share(self, share_id: str) -> JsonObject:
        """The card behind a link, of anybody's share. It counts as an access."""
        return await self._data("GET", f"/share/{share_id}")

    async def revoke_share(self, share_id: str) -> JsonObject:
        """Ends a link."""
        return await self._data("DELETE", f"/shares/{share_id}")

    async def delete_object(self, object_key: str) -> JsonObject:
        """Deletes the bytes of a file: one's own, or of a group that one looks after."""
        return await self._data("DELETE", f"/objects/{object_key}")

    async def version(self) -> JsonObject:
        """The versions of the interface that the service serves, and its own."""
        return await self._data("GET", "/version")

    async def limits(self) -> JsonObject:
        """Every limit of this person, and the bytes of the account."""
        return dict(await self.request("GET", "/limits"))

    async def access_log(
        self, *, agent_id: str | None = None, conversation_id: str | None = None
    ) -> AsyncIterator[JsonObject]:
        """The reads of this person's data by agents, the newest first."""
        query = {"agent_id": agent_id, "conversation_id": conversation_id}
        async for read in self._http.pages("/grants/access-log", query):
            yield read

    async def search(
        self, words: str | None = None, *, tokens: Sequence[str] = (), types: Sequence[str] = ()
    ) -> AsyncIterator[JsonObject]:
        """What the service finds by a name; messages by the `search_tokens` of their sends.

        The tokens are those of a program that makes its own. It reads no message.
        `Conversation.search` finds words.
        """
        query = {
            "q": words,
            "tokens": ",".join(tokens) or None,
            "types": ",".join(types) or None,
        }
        async for hit in self._http.pages("/search", query):
            yield hit

    async def reauth(
        self,
        *,
        account_password: str | None = None,
        code: str | None = None,
        challenge_id: str | None = None,
        credential: Mapping[str, Any] | None = None,
    ) -> None:
        """Proves the person's identity anew, by the password, a mailed code or a passkey.

        For ten minutes this session may then do what the service refuses with `ReauthRequired`.
        """
        given = {
            "account_password": account_password,
            "code": code,
            "challenge_id": challenge_id,
            "credential": credential,
        }
        body = {name: value for name, value in given.items() if value is not None}
        await self._http.data(Call("POST", "/auth/reauth", body=body))

    async def grants(self) -> AsyncIterator[Grant]:
        """The grants that agents have, or ask for."""
        async for grant in self._http.pages("/grants"):
            yield grant

    async def decide_grant(self, grant_id: str, decision: Literal["approve", "deny"]) -> Grant:
        """This person's answer to an agent's request."""
        path, body = f"/grants/{grant_id}/decision", {"decision": decision}
        grant: Grant = await self._http.data(Call("POST", path, body=body))
        return grant

"""Passkeys, made and used by an authenticator that the program brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

from ..core.types import JsonObject
from .calls import AccountCalls
from .options import ClientOptions
from .sign_ins import SignIns


class Authenticator(Protocol):
    """Makes and uses passkeys: a browser's page, the system's own, a security key, or software.

    Both calls take the `publicKey` of WebAuthn's options and answer a credential, as the JSON of
    WebAuthn Level 3: bytes are base64url without padding. The origin of its client data is one of
    the service's `RP_ORIGIN`. It verifies the user. Whatever it raises, the caller gets.
    """

    async def create(self, public_key: Mapping[str, Any]) -> Mapping[str, Any]:
        """Makes a key, as `navigator.credentials.create` does. Answers `RegistrationResponseJSON`."""

    async def get(self, public_key: Mapping[str, Any]) -> Mapping[str, Any]:
        """Signs, as `navigator.credentials.get` does. Answers `AuthenticationResponseJSON`."""


class Passkeys(SignIns, AccountCalls):
    """A challenge, the authenticator's answer, and what the service says to it, in one call."""

    @classmethod
    async def login_with_authenticator(
        cls, options: ClientOptions, authenticator: Authenticator
    ) -> Self:
        """Signs in with a passkey. The authenticator says whose it is, so it needs no address.

        Raises `PasskeyInvalid` for a passkey that the service does not know, or that was copied.
        """
        begun = await cls.begin_passkey_login(options)
        credential = await authenticator.get(begun["public_key"])
        return await cls.login_with_passkey(
            options, challenge_id=begun["challenge_id"], credential=credential
        )

    async def create_passkey(
        self, authenticator: Authenticator, *, name: str | None = None
    ) -> JsonObject:
        """Adds a new passkey to the account: `passkey_id`, `name`, `created_at`.

        Raises `ReauthRequired` without a sign-in of the last 10 minutes, and `PasskeyInvalid` for
        an answer that the service does not accept.
        """
        begun = await self.begin_passkey()
        credential = await authenticator.create(begun["public_key"])
        return await self.add_passkey(begun["challenge_id"], credential, name=name)

    async def reauth_with_authenticator(self, authenticator: Authenticator) -> None:
        """Proves the person's identity anew, as `reauth` does."""
        begun = await self._data("POST", "/auth/passkey/begin", {})
        credential = await authenticator.get(begun["public_key"])
        await self.reauth(challenge_id=begun["challenge_id"], credential=dict(credential))

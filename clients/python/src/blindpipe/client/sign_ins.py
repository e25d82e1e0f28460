"""The ways to sign in, and what leads to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from ..core.types import JsonObject
from .options import ClientOptions


class SignIns:
    """Each sign-in answers a client."""

    @classmethod
    async def _sign_in(cls, options: ClientOptions, path: str, body: JsonObject) -> Self:
        raise NotImplementedError

    @classmethod
    async def _public(cls, options: ClientOptions, path: str, body: JsonObject) -> JsonObject:
        raise NotImplementedError

    @classmethod
    async def login(
        cls, options: ClientOptions, *, email: str, password: str, turnstile_token: str
    ) -> Self:
        """Signs in with the account's password."""
        body = {
            "email": email,
            "account_password": password,
            "turnstile_token": turnstile_token,
        }
        return await cls._sign_in(options, "/auth/login", body)

    @classmethod
    async def login_with_code(cls, options: ClientOptions, *, email: str, code: str) -> Self:
        """Signs in with a mailed code."""
        return await cls._sign_in(options, "/auth/login-code", {"email": email, "code": code})

    @classmethod
    async def register(
        cls,
        options: ClientOptions,
        *,
        email: str,
        code: str,
        password: str,
        display_name: str,
        turnstile_token: str,
        locale: str = "en",
    ) -> Self:
        """Makes an account, with a mailed code."""
        body = {
            "email": email,
            "code": code,
            "account_password": password,
            "display_name": display_name,
            "device_locale": locale,
            "turnstile_token": turnstile_token,
        }
        return await cls._sign_in(options, "/auth/register", body)

    @classmethod
    async def begin_passkey_login(cls, options: ClientOptions) -> JsonObject:
        """The challenge of a sign-in; `public_key` is for `navigator.credentials.get`."""
        return await cls._public(options, "/auth/passkey/begin", {})

    @classmethod
    async def login_with_passkey(
        cls, options: ClientOptions, *, challenge_id: str, credential: Mapping[str, Any]
    ) -> Self:
        """Signs in with the credential that answers a challenge, as WebAuthn's JSON."""
        body = {"challenge_id": challenge_id, "credential": dict(credential)}
        return await cls._sign_in(options, "/auth/passkey/complete", body)

    @classmethod
    async def reset_password(
        cls, options: ClientOptions, *, email: str, code: str, new_password: str
    ) -> JsonObject:
        """Sets a password by a code that was mailed for the scene `reset`. Every session ends."""
        body = {"email": email, "code": code, "new_account_password": new_password}
        return await cls._public(options, "/auth/reset-password", body)

    @classmethod
    async def send_code(
        cls,
        options: ClientOptions,
        *,
        email: str,
        scene: Literal["register", "login", "reset"],
        turnstile_token: str,
    ) -> None:
        """Mails a code."""
        body = {"email": email, "scene": scene, "turnstile_token": turnstile_token}
        await cls._public(options, "/auth/send-code", body)

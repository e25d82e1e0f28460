"""A person's session: sign-in, the access token of the moment, and its renewal."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import ssl
import time
import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from ..core.types import JsonObject, SignedIn
from ..errors import BlindpipeError, Closed, ConnectionLost, UsageError
from ..hooks import HookCaller
from ..transport.http import Call, Http

RENEW_BEFORE_SECONDS: Final = 30.0
"""A token is renewed this long before its end."""
_COOKIE = "refresh_token"


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A sign-in that a later run goes on with. Keep it as you keep a password."""

    user_id: str
    device_id: str
    refresh_token: str = field(repr=False)
    """It is good for one renewal: the newest one counts."""


class Account:
    """The person who is signed in, and the calls in that person's name."""

    def __init__(
        self,
        url: str,
        hooks: HookCaller,
        ssl_context: ssl.SSLContext | None,
        *,
        allow_http: bool = False,
        on_session: Callable[[StoredSession], Awaitable[None]],
    ) -> None:
        self._on_session = on_session
        self.http = Http(
            url, hooks, self.token, self.renew, ssl_context, allow_http=allow_http
        )
        self._salt = os.urandom(16)
        self._password: bytes | None = None
        self._access_token: str | None = None
        self._expires_at = 0.0
        self._refresh_token: str | None = None
        self._signed_in: SignedIn | None = None
        # An earlier sign-in that the service was not asked about.
        self._is_unasked = False
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return "Account"

    def _current(self) -> SignedIn:
        if self._signed_in is None:
            raise UsageError("nobody is signed in")
        return self._signed_in

    @property
    def user_id(self) -> str:
        """The person's id."""
        return self._current()["user_id"]

    @property
    def device_id(self) -> str:
        """This device's id."""
        return self._current()["device_id"]

    @property
    def key_backup(self) -> JsonObject:
        """Whether a backup of the device's keys is there."""
        return self._current()["key_backup"]

    async def sign_in(self, path: str, body: JsonObject) -> None:
        """Any of the sign-ins: they all answer alike."""
        signed_in = cast(SignedIn, await self._auth(path, body))
        password = body.get("account_password")
        if isinstance(password, str):
            self._password = self._named(password)
        self._signed_in = signed_in
        await self._take(signed_in["access_token"], signed_in["expires_in_seconds"])

    def _named(self, password: str) -> bytes:
        return hmac.digest(self._salt, unicodedata.normalize("NFKC", password).encode(), "sha256")

    def is_password(self, text: str) -> bool:
        """Whether the sign-in was with this password, which the server has seen."""
        return self._password is not None and hmac.compare_digest(self._named(text), self._password)

    async def _auth(self, path: str, body: JsonObject | None = None) -> Any:
        """A call of `/auth/`, which carries and renews the refresh token's cookie."""
        held = self._refresh_token
        headers = {"cookie": f"{_COOKIE}={held}"} if held else {}
        repeatable = path == "/auth/refresh"
        call = Call("POST", path, body=body, headers=headers, public=True, repeatable=repeatable)
        raw = await self.http.raw(call)
        self._refresh_token = raw.cookies.get(_COOKIE) or self._refresh_token
        try:
            return json.loads(raw.body)["data"]
        except (ValueError, LookupError, TypeError) as error:
            raise ConnectionLost("the answer was cut short") from error

    def resume_offline(self, session: StoredSession) -> None:
        """Goes on with the sign-in of an earlier run, which the first call renews."""
        self._is_unasked = True
        self._refresh_token = session.refresh_token
        self._signed_in = {
            "user_id": session.user_id,
            "device_id": session.device_id,
            "access_token": "",
            "expires_in_seconds": 0,
            "is_new_device": False,
            "key_backup": {},
        }

    async def _take(self, token: str, expires_in_seconds: int) -> None:
        if self._refresh_token is not None:
            # It is good once, so the next one is kept before the token is used.
            session = StoredSession(self.user_id, self.device_id, self._refresh_token)
            await self._on_session(session)
        self._access_token = token
        self._expires_at = time.monotonic() + expires_in_seconds

    async def token(self) -> str | None:
        """The access token, renewed shortly before its end.

        Raises `Closed` if a sign-in that goes on has ended meanwhile.
        """
        if self._is_unasked:
            if not await self.renew():
                raise Closed("the sign-in has ended")
        elif self._access_token and time.monotonic() > self._expires_at - RENEW_BEFORE_SECONDS:
            try:
                await self.renew()
            except BlindpipeError:
                # Until its end it serves on.
                if time.monotonic() > self._expires_at:
                    raise
        return self._access_token

    async def renew(self) -> bool:
        """A new access token; false if the session has ended.

        Any other failure raises, and says nothing about the session.
        """
        before = self._access_token
        async with self._lock:
            # Somebody else has renewed it meanwhile.
            return self._access_token != before or await self._refresh()

    async def _refresh(self) -> bool:
        try:
            fresh = await self._auth("/auth/refresh")
        except BlindpipeError as error:
            if error.status == 401:
                return False
            raise
        try:
            user, token, seconds = (
                fresh[name] for name in ("user_id", "access_token", "expires_in_seconds")
            )
        except (LookupError, TypeError) as error:
            raise ConnectionLost("the answer is none of the service") from error
        if self._signed_in is not None and user != self.user_id:
            return False
        self._is_unasked = False
        await self._take(token, seconds)
        return True

    async def logout(self) -> None:
        """Ends the session."""
        await self._auth("/auth/logout")
        self._access_token = self._refresh_token = None

"""Keys of other principals, from the server into the pins.

This file alone knows what a server has of the additions for clients that encrypt. A server with
`GET /keys/groups/:id/recipients` answers all members' keys at once, with introductions and
schemes; one without is asked principal by principal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..e2ee import E2eeError, Principal, from_base64
from ..e2ee.ids import principal, principal_id
from ..e2ee.room import Visibility
from ..e2ee.trust import DirectoryKey, Introduction, Notice, Trust
from ..errors import BlindpipeError
from ..transport.clock import now_ms
from ..transport.http import Call, Http
from .types import JsonObject, Member, milliseconds

PAGE_MEMBERS = 100


@dataclass(frozen=True, slots=True)
class Recipient:
    """A member's current keys, as the server names the recipients of a rotation."""

    principal: Principal
    visibility: Visibility | None
    keys: Sequence[DirectoryKey]


class Directory:
    """Reads keys, and pins what is new."""

    def __init__(
        self,
        http: Http,
        trust: Trust,
        on_notice: Callable[[Notice], None],
        on_trust_changed: Callable[[], None],
    ) -> None:
        self._http = http
        self._trust = trust
        self._on_notice = on_notice
        self._on_trust_changed = on_trust_changed
        # Whether the server answers all members at once; None until it was asked.
        self._has_recipients: bool | None = None
        # The reads in the order in which they began, and how many of them are under way.
        self._numbers = itertools.count(1)
        self._under_way = 0
        # The newest read that has told a principal's keys, while any read is under way.
        self._newest: dict[Principal, int] = {}

    @contextmanager
    def _reading(self) -> Iterator[int]:
        """Numbers a read."""
        self._under_way += 1
        try:
            yield next(self._numbers)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._newest.clear()

    async def recipients(self, conversation_id: str, members: Iterable[Member]) -> list[Recipient]:
        """Reads the keys of all members."""
        with self._reading() as number:
            return await self._recipients(number, conversation_id, members)

    async def _recipients(
        self, number: int, conversation_id: str, members: Iterable[Member]
    ) -> list[Recipient]:
        found = await self._at_once(conversation_id)
        if found is None:
            found = await self._one_by_one(members)
        recipients = []
        for shown in found:
            of = principal(shown["principal_type"], shown["principal_id"])
            self._pin(number, of, shown["devices"])
            current = [_directory_key(key) for key in shown["devices"] if _is_current(key)]
            recipients.append(Recipient(of, shown.get("visibility"), current))
        return recipients

    async def _at_once(self, conversation_id: str) -> list[JsonObject] | None:
        if self._has_recipients is False:
            return None
        found: list[JsonObject] = []
        cursor: str | None = None
        while True:
            try:
                page = await self._page(conversation_id, limit=PAGE_MEMBERS, cursor=cursor)
            except BlindpipeError as error:
                if error.status != 404:
                    raise
                if self._has_recipients is None:
                    self._has_recipients = False
                return None
            members, cursor = page
            found.extend(members)
            if not cursor:
                self._has_recipients = True
                return found

    async def _page(
        self, conversation_id: str, **query: str | int | None
    ) -> tuple[list[JsonObject], str | None]:
        path = f"/keys/groups/{conversation_id}/recipients"
        answer = await self._http.call(Call("GET", path, query))
        # The cursor stands beside `data` or in it.
        return answer.data["members"], answer.next_cursor or answer.data.get("next_cursor")

    async def speaker(self, conversation_id: str, who: Principal) -> None:
        """Reads the keys of somebody who spoke in a conversation and may have left it."""
        if self._has_recipients is not True:
            return await self.refresh(who)
        with self._reading() as number:
            try:
                members, _ = await self._page(conversation_id, principal_id=principal_id(who))
            except BlindpipeError as error:
                if error.status != 404:
                    raise
                return
            for shown in members:
                self._pin(number, who, shown["devices"])

    async def _one_by_one(self, members: Iterable[Member]) -> list[JsonObject]:
        found: list[JsonObject] = []
        for member in members:
            devices = await self._read(principal(member["principal_type"], member["principal_id"]))
            if devices is not None:
                found.append({**member, "devices": devices})
        return found

    async def refresh(self, of: Principal) -> None:
        """Reads the keys of a single principal."""
        with self._reading() as number:
            devices = await self._read(of)
            if devices is not None:
                self._pin(number, of, devices)

    async def _read(self, of: Principal) -> list[JsonObject] | None:
        id = principal_id(of)
        path = f"/keys/users/{id}/devices" if of.is_user else f"/agents/{id}/keys"
        try:
            data = await self._http.data(Call("GET", path))
        except BlindpipeError as error:
            if error.status == 404:
                return None
            raise
        devices: list[JsonObject] = data["devices" if of.is_user else "keys"]
        return devices

    def _pin(self, number: int, of: Principal, shown: Iterable[JsonObject]) -> None:
        if self._newest.get(of, 0) > number:
            # A list of before a newer one would retire the keys that are new in that.
            return
        self._newest[of] = number
        keys = [_directory_key(key) for key in shown]
        if self._has_recipients is not True:
            # An older server says nothing of schemes: keys alone then mean `bp1`.
            keys = [key if key.schemes else replace(key, schemes=("bp1",)) for key in keys]
        for notice in self._trust.directory(of, keys, now_ms()):
            self._on_notice(notice)
        self._on_trust_changed()


def _directory_key(shown: JsonObject) -> DirectoryKey:
    # The end of a replaced key's grace may lie ahead; until then it signs.
    end = shown.get("retired_at") or shown.get("valid_until")
    return DirectoryKey(
        shown.get("device_id"),
        from_base64(shown["public_key"]),
        from_base64(shown["signing_public_key"]),
        tuple(shown.get("schemes") or ()),
        _introduction(shown.get("introduction")),
        retired_at=milliseconds(end) if end else None,
    )


def _introduction(shown: Any) -> Introduction | None:
    if not shown:
        return None
    try:
        return Introduction(bytes.fromhex(shown["by_key_id"]), from_base64(shown["signature"]))
    except (ValueError, E2eeError):
        return None


def _is_current(key: JsonObject) -> bool:
    """The directory keeps retired keys for old signatures; nothing is given to them."""
    return not key.get("retired_at") and not key.get("valid_until")

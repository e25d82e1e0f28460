"""A fresh secret for a conversation: its recipients, and the server's refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..api_errors import RateLimited, RecipientsMismatch, VersionMismatch
from ..core.directory import Recipient
from ..core.session import Entry, Session
from ..core.types import JsonObject
from ..e2ee import EpochKey, Principal, PrivateKeys, PublicKeys, ids, to_base64, wrap
from ..e2ee.room import Due, Seal
from ..e2ee.trust import DirectoryKey, NoticeKind
from ..errors import BlindpipeError, KeyUnavailable
from ..transport.clock import now_ms
from ..transport.http import Call

MAX_TRIES: Final = 3
MAX_REFUSED_MS: Final = 10 * 60_000
"""A secret whose age alone asks for another seals on for so long after the first refusal."""


@dataclass(frozen=True, slots=True)
class NotGiven:
    """Somebody who got nothing, so that the person can be told."""

    principal: Principal
    device_id: str | None
    because: NoticeKind


def needs_rotation(entry: Entry, me: Principal, answering: int | None) -> bool:
    """Whether a conversation needs a fresh secret before anything is sent."""
    return not isinstance(entry.room.sealing(me, answering, now_ms()), Seal)


class Rotator:
    """Makes secrets in one person's name."""

    def __init__(
        self,
        session: Session,
        keys: PrivateKeys,
        on_not_given: Callable[[str, NotGiven], None],
        on_not_rotated: Callable[[str, Due | None], None],
    ) -> None:
        self._session = session
        self._keys = keys
        self._on_not_given = on_not_given
        self._on_not_rotated = on_not_rotated

    async def prepare(self, conversation_id: str, answering: int | None = None) -> None:
        """Makes a fresh secret if one is due before anything is sealed.

        Raises `KeyUnavailable` where the server refuses one that has to be.
        """
        entry = await self._session.load(conversation_id)
        if needs_rotation(entry, self._session.options.me, answering):
            await self.rotate(conversation_id, may_wait=True)

    async def rotate(self, conversation_id: str, *, may_wait: bool = False) -> None:
        """Makes the next epoch. Of two that rotate at once, both go on with the one that won.

        `may_wait`: for some minutes the newest secret will do, where its age alone is the reason.
        """
        for attempt in range(1, MAX_TRIES + 1):
            entry = await self._session.load(conversation_id)
            try:
                return await self._rotate_from(conversation_id, entry)
            except BlindpipeError as error:
                if isinstance(error, RateLimited):
                    return self._refused(conversation_id, entry, error, may_wait)
                if await self._is_settled(conversation_id, entry, error):
                    return
                if attempt == MAX_TRIES:
                    raise

    async def _is_settled(self, conversation_id: str, entry: Entry, error: BlindpipeError) -> bool:
        """Whether there is a secret to seal with after all."""
        if isinstance(error, VersionMismatch):
            await self._session.read_wraps(conversation_id, entry)
            # A secret of before the change is none, whatever the server calls it.
            return entry.room.sealable() is not None and entry.room.due(now_ms()) != "change"
        if isinstance(error, RecipientsMismatch):
            entry.is_stale = True
            return False
        raise error

    def _refused(
        self, conversation_id: str, entry: Entry, error: RateLimited, may_wait: bool
    ) -> None:
        """The limit forbids a fresh secret.

        Members could use up the limit to silence others, so age alone stops nobody at once.
        """
        now = now_ms()
        entry.refused_since = entry.refused_since or now
        is_new = now - entry.refused_since < MAX_REFUSED_MS
        due = entry.room.due(now)
        if may_wait and is_new and due != "change" and entry.room.sealable() is not None:
            return
        self._on_not_rotated(conversation_id, due)
        raise KeyUnavailable("a fresh secret is due, and the server refuses it") from error

    async def _rotate_from(self, conversation_id: str, entry: Entry) -> None:
        base = entry.room.server.epoch
        wraps = self._wraps(conversation_id, entry, base + 1)
        body = {"base_epoch": base, "wrapped_keys": wraps}
        path = f"/keys/groups/{conversation_id}/rotate"
        made = await self._session.options.http.data(Call("POST", path, body=body))
        if made["epoch"] != base + 1:
            raise BlindpipeError("EPOCH", 0, "the server numbered the epoch otherwise")
        me, device = self._session.options.me, self._session.options.device_id
        for each in wraps:
            if ids.parse(each["principal_id"]) == me.id and each.get("device_id") == device:
                self._session.rotated(conversation_id, entry, base + 1, each["wrapped_key"])

    def _wraps(self, conversation_id: str, entry: Entry, epoch: int) -> list[JsonObject]:
        newest, me = entry.room.newest, self._session.options.me
        rotation = wrap.Rotation(
            EpochKey.random(entry.room.conversation, epoch),
            me.id,
            self._keys,
            max(now_ms(), entry.room.marks.time + 1),
            newest.sid if newest else bytes(16),
        )
        wraps: list[JsonObject] = []
        for recipient in entry.recipients:
            id = ids.principal_id(recipient.principal)
            for key in recipient.keys:
                device = {"device_id": key.device_id} if key.device_id else {}
                data = self._wrap(conversation_id, entry, rotation, recipient, key)
                wraps.append({"principal_id": id, "wrapped_key": to_base64(data), **device})
        return wraps

    def _wrap(
        self,
        conversation_id: str,
        entry: Entry,
        rotation: wrap.Rotation,
        recipient: Recipient,
        key: DirectoryKey,
    ) -> bytes:
        who = recipient.principal
        given = entry.room.give(self._session.options.trust, who, key, now_ms())
        if isinstance(given, NoticeKind):
            self._on_not_given(conversation_id, NotGiven(who, key.device_id, given))
            return wrap.NOT_GIVEN
        public = PublicKeys(key.public_key, key.signing_public_key)
        return wrap.seal(rotation, who, public, addressed=given == "lane")

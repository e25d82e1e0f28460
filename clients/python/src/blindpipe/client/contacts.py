"""The keys of others: those that a person accepts, digits to compare, and what was compared."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.session import Session
from ..e2ee import E2eeError, Principal
from ..e2ee.trust import Notice, Trust
from ..errors import UsageError
from ..transport.clock import now_ms


class Contacts:
    """A person's decisions about keys."""

    @property
    def me(self) -> Principal:
        """This person, as the encryption names it."""
        raise NotImplementedError

    @property
    def trust(self) -> Trust:
        """The keys of others that this device has learned."""
        raise NotImplementedError

    @property
    def session(self) -> Session:
        """The session knows the conversations."""
        raise NotImplementedError

    def _on_notice(self, notice: Notice, conversation_id: str | None) -> None:
        raise NotImplementedError

    def _on_trust_changed(self) -> None:
        raise NotImplementedError

    def confirm(self, principal: Principal, key_id: str) -> None:
        """Accepts a key that waits: this person takes it for that principal's.

        `key_id` has 32 digits of hex, as the hook `key_changed` names it. Raises `UsageError` for a
        key that was never shown.
        """
        if not self.trust.confirm(principal, bytes.fromhex(key_id), now_ms()):
            raise UsageError("this key was never shown")
        self._reconsider(principal)

    def verify(self, principal: Principal, number: str) -> None:
        """People have compared these digits: all keys of theirs that they stand for are verified.

        Raises `UsageError` if they are not, or no longer, the digits of `safety_number()`.
        """
        notices = self.trust.verify_number(principal, number, now_ms())
        if notices is None:
            raise UsageError("these are not the digits of now")
        self._compared(principal, notices)

    def verify_key(self, principal: Principal, key_id: str) -> None:
        """People have compared this key alone, for example by its id, which has 32 digits of hex.

        All other keys of theirs wait from now on, but for those that it introduced. The hook
        `key_changed` names them. Raises `UsageError` for a key that was never shown, or is retired.
        """
        notices = self.trust.verify(principal, bytes.fromhex(key_id), now_ms())
        if notices is None:
            raise UsageError("this key was never shown, or it is retired")
        self._compared(principal, notices)

    def _compared(self, principal: Principal, notices: Iterable[Notice]) -> None:
        for notice in notices:
            self._on_notice(notice, None)
        self._reconsider(principal)

    def _reconsider(self, principal: Principal) -> None:
        self.session.reconsider(principal)
        self._on_trust_changed()

    async def safety_number(self, principal: Principal) -> str:
        """60 digits to compare with somebody: of all accepted keys of both.

        The service lists the keys anew. Where a side has no accepted ones, those that wait count.
        """
        for who in (self.me, principal):
            await self.session.directory.refresh(who)
        number = self.trust.safety_number(principal, now_ms())
        if number is None:
            raise E2eeError("unknown_sender_key")
        return number

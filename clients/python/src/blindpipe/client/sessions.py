"""The sessions of a person, and the undo of what one has added: for the time after a theft."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.types import SessionChange, SessionInfo
from ..transport.http import Call
from .account import Account


class Sessions:
    """The sessions of one person."""

    def __init__(self, account: Account) -> None:
        self._account = account

    async def list(self) -> Sequence[SessionInfo]:
        """All sessions, newest first, with those that ended within 30 days."""
        return [session async for session in self._account.http.pages("/users/me/sessions")]

    async def changes(self, session_id: str) -> Sequence[SessionChange]:
        """What a session has added and is still there: agents, relations, passkeys, and more."""
        path = f"/users/me/sessions/{session_id}/changes"
        return [change async for change in self._account.http.pages(path)]

    async def undo(
        self, session_id: str, ids: Iterable[str] | None = None
    ) -> Sequence[SessionChange]:
        """Undoes what a session has added, also after its end: these changes, or all.

        Answers what this call has undone.
        """
        body = {} if ids is None else {"ids": [*ids]}
        path = f"/users/me/sessions/{session_id}/undo"
        # Nothing is undone twice, so a repeat is safe.
        answer = await self._account.http.data(Call("POST", path, body=body, repeatable=True))
        undone: Sequence[SessionChange] = answer["undone"]
        return undone

"""A person's choices to write in clear."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

MAX_CLEAR_CHOICES: Final = 1_000
"""Of more conversations in clear, the newest choices count. In the others the person is asked."""


class ClearChoices:
    """The conversations in which a person chose to write in clear, the oldest choice first."""

    def __init__(self, save: Callable[[], Awaitable[None]]) -> None:
        self._save = save
        self._chosen: dict[str, None] = {}

    def __contains__(self, conversation_id: str) -> bool:
        return conversation_id in self._chosen

    def take(self, conversation_ids: Iterable[str]) -> None:
        """The choices of an earlier run."""
        self._chosen.update(dict.fromkeys(conversation_ids))

    def store(self) -> list[str]:
        """The choices that a store keeps."""
        return list(self._chosen)[-MAX_CLEAR_CHOICES:]

    async def choose(self, conversation_id: str) -> None:
        """Keeps a choice. Raises whatever a store raises that fails; then nothing is chosen."""
        if conversation_id in self._chosen:
            return
        self._chosen[conversation_id] = None
        try:
            await self._save()
        except BaseException:
            self._chosen.pop(conversation_id, None)
            raise
        self._chosen = dict.fromkeys(self.store())

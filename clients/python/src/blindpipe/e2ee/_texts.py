"""Many entries, kept as JSON texts: each is parsed when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


class Texts(Mapping[str, Any]):
    """Entries by name. A hundred thousand of them are small, and are at hand at once."""

    __slots__ = ("_texts",)

    def __init__(self, texts: dict[str, str] | None = None) -> None:
        self._texts = texts if texts is not None else {}

    def __getitem__(self, name: str) -> Any:
        return json.loads(self._texts[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def put(self, name: str, entry: Any) -> None:
        """Takes the place of an earlier entry of this name."""
        self._texts[name] = json.dumps(entry, separators=(",", ":"))

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> Texts:
        """These entries; others that are texts already are shared, not copied."""
        if isinstance(entries, cls):
            return entries
        texts = cls()
        for name, entry in entries.items():
            texts.put(name, entry)
        return texts

"""Search tokens: keyed hashes of words, by which the service finds what it cannot read."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from ._bytes import hkdf
from .epoch import EpochKey

MAX_MESSAGE_TOKENS = 64
"""The most tokens that the service takes with a message."""
MAX_SEARCH_TOKENS = 16
"""The most tokens that the service takes in a search."""

TOKEN_BYTES = 16

# Thai and Lao, Myanmar, Khmer, kana, and Han: scripts that put no spaces between words.
_UNSPACED = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x30FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0x20000, 0x3FFFF),
)


def words(text: str) -> list[str]:
    """The words of a text in the form in which they are compared, each once, in their order.

    A word is a run of letters, marks and digits. Scripts that put no spaces between words give each
    pair of neighbours as a word.
    """
    found: list[str] = []
    run = ""
    for letter in _fold(text) + " ":
        is_word = unicodedata.category(letter)[0] in "LMN"
        if run and not (is_word and _is_unspaced(run[-1]) == _is_unspaced(letter)):
            found.extend(_parts(run))
            run = ""
        if is_word:
            run += letter
    return list(dict.fromkeys(found))


def _parts(run: str) -> list[str]:
    if _is_unspaced(run[0]) and len(run) > 1:
        return [run[at : at + 2] for at in range(len(run) - 1)]
    return [run]


def _fold(text: str) -> str:
    """Upper case and then lower case by code point.

    The languages of the clients agree on it, and on nothing closer to Unicode's case folding.
    """
    upper = "".join(letter.upper() for letter in unicodedata.normalize("NFKC", text))
    lower = "".join(letter.lower() for letter in upper)
    return unicodedata.normalize("NFKC", lower)


def _is_unspaced(letter: str) -> bool:
    return any(first <= ord(letter) <= last for first, last in _UNSPACED)


def tokens(key: EpochKey, words: Sequence[str]) -> list[str] | None:
    """The tokens of words in the epoch of `key`, as 32 digits of hex.

    `None` for the lane of an `addressed` agent.
    """
    search = key.search()
    if search is None:
        return None
    return [hkdf(search.expose(), b"", word.encode(), TOKEN_BYTES).hex() for word in words]

"""Safety numbers: sixty digits that two people compare, of all keys of both."""

import hashlib
from collections.abc import Iterable

from ._bytes import label
from .keys import Principal, PublicKeys


def half(owner: Principal, keys: Iterable[PublicKeys]) -> str:
    """The thirty digits of one side, in six groups. The order of the keys does not matter."""
    pairs = sorted({pair.public_key + pair.signing_public_key for pair in keys})
    text = label("safety") + owner.to_bytes() + b"".join(pairs)
    data = hashlib.sha512(text).digest()
    groups = (int.from_bytes(data[at : at + 5], "big") for at in range(0, 30, 5))
    return " ".join(f"{group % 100_000:05}" for group in groups)


def number(
    one: tuple[Principal, Iterable[PublicKeys]], other: tuple[Principal, Iterable[PublicKeys]]
) -> str:
    """The number of two sides, the same on both."""
    return " ".join(sorted((half(*one), half(*other))))

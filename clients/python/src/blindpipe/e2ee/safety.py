"""Safety numbers: sixty digits that two people compare."""

import hashlib

from ._bytes import label
from .keys import Principal, PublicKeys


def half(owner: Principal, keys: PublicKeys) -> str:
    """The thirty digits of one side, in six groups."""
    text = label("safety") + owner.to_bytes() + keys.public_key + keys.signing_public_key
    data = hashlib.sha512(text).digest()
    groups = (int.from_bytes(data[at : at + 5], "big") for at in range(0, 30, 5))
    return " ".join(f"{group % 100_000:05}" for group in groups)


def number(one: tuple[Principal, PublicKeys], other: tuple[Principal, PublicKeys]) -> str:
    """The number of two keys, the same on both sides."""
    return " ".join(sorted((half(*one), half(*other))))

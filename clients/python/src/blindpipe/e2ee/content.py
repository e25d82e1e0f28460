"""The rules of contents, and the padding that hides their length."""

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from .errors import E2eeError

MAX_CONTENT_BYTES: Final = 720 * 1024
RESERVED_BYTES: Final = 1_024
"""Of a content, for what a send adds to it."""
MAX_CONTENT_DEPTH: Final = 64
MAX_SAFE_NUMBER: Final = 2**53 - 1
FRONT_BYTES: Final = 96


def encode(content: Mapping[str, Any]) -> bytes:
    """The bytes of a content; raises `malformed` for what is no JSON."""
    try:
        return json.dumps(
            content, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()
    except (TypeError, ValueError, RecursionError):
        raise E2eeError("malformed") from None


def parse(content: bytes, max_bytes: int = MAX_CONTENT_BYTES) -> dict[str, Any]:
    """The content: an object in UTF-8 that every language reads alike."""
    if len(content) > max_bytes:
        raise E2eeError("malformed")
    try:
        text = content.decode()
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        raise E2eeError("not_json") from None
    if not isinstance(value, dict) or not _portable(value, 1):
        raise E2eeError("not_json")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _portable(value: object, depth: int) -> bool:
    match value:
        case bool() | None:
            return True
        case int() | float():
            return abs(value) <= MAX_SAFE_NUMBER
        case str():
            return _well_formed(value)
        case list():
            return depth <= MAX_CONTENT_DEPTH and all(_portable(v, depth + 1) for v in value)
        case dict():
            return depth <= MAX_CONTENT_DEPTH and all(
                _well_formed(k) and _portable(v, depth + 1) for k, v in value.items()
            )
    return False


def _well_formed(text: str) -> bool:
    """Whether no surrogate stands alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def padded(length: int, least: int = 128) -> int:
    """The padded length, by the rule of Padmé: at most 12 % more."""
    length = max(length, least)
    exponent = length.bit_length() - 1
    unit = 1 << (exponent - exponent.bit_length())
    return -(-length // unit) * unit

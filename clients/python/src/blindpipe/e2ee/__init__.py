"""The end-to-end encryption `bp1` of blindpipe.

No input or output, no clock: bytes and times are passed in. `docs/encryption.md` describes the
scheme byte by byte, and what it does not protect.
"""

from . import (
    approval,
    backup,
    consent,
    content,
    envelope,
    file,
    ids,
    keylog,
    room,
    safety,
    search,
    trust,
    wrap,
)
from ._bytes import from_base64, to_base64
from .epoch import EpochKey
from .errors import REASONS, E2eeError, Reason
from .keys import (
    ED25519_SMALL_ORDER,
    X25519_SMALL_ORDER,
    AgentKey,
    Kind,
    Principal,
    PrivateKeys,
    PublicKeys,
    Secret,
    introduce,
    verify_introduction,
)

__all__ = [
    "ED25519_SMALL_ORDER",
    "REASONS",
    "X25519_SMALL_ORDER",
    "AgentKey",
    "E2eeError",
    "EpochKey",
    "Kind",
    "Principal",
    "PrivateKeys",
    "PublicKeys",
    "Reason",
    "Secret",
    "approval",
    "backup",
    "consent",
    "content",
    "envelope",
    "file",
    "from_base64",
    "ids",
    "introduce",
    "keylog",
    "room",
    "safety",
    "search",
    "to_base64",
    "trust",
    "verify_introduction",
    "wrap",
]

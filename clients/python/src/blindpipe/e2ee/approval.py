"""Approvals: what a person signs, and the receipt that proves it without the service."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, NoReturn

from ._bytes import from_base64, prefixed, sha256, u64
from .errors import E2eeError
from .keys import PublicKeys

ReceiptFault = Literal[
    "malformed",
    "wrong_question",
    "wrong_answer",
    "unknown_key",
    "bad_signature",
    "wrong_outcome",
]

KeyOf = Callable[[str, str], PublicKeys | None]
"""The keys of a user under a key id in hex."""

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_KEY_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


class ReceiptError(Exception):
    """A receipt does not prove what it says."""

    def __init__(self, reason: ReceiptFault) -> None:
        super().__init__(reason)
        self.reason: ReceiptFault = reason


def question_digest(content: str) -> bytes:
    """The digest of a question: over the exact bytes of its content."""
    return sha256(b"blindpipe approval digest v1\0", content.encode())


def answer_digest(content: str) -> bytes:
    """The digest of an answer: over the exact bytes of its content."""
    return sha256(b"blindpipe answer digest v1\0", content.encode())


def clear_content(payload: Mapping[str, Any]) -> str:
    """The content of a payload in clear: names sorted, no spaces, characters as they are."""
    return json.dumps(payload, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Decision:
    """A person's decision, in the words of the wire."""

    approval_id: str
    agent_id: str
    conversation_id: str
    user_id: str
    key_id: str
    """The signing key, in hex."""
    decision: str
    """`approved`, `answered` or `denied`."""
    digest: bytes
    """Of the question."""
    answer_digest: bytes | None
    """Of the answer; None without one."""
    decided_at: int
    """Unix milliseconds."""

    def to_bytes(self) -> bytes:
        """The bytes that the person's device signs."""
        texts = (
            self.approval_id,
            self.agent_id,
            self.conversation_id,
            self.user_id,
            self.key_id,
            self.decision,
        )
        front = b"blindpipe approval v1\0" + b"".join(map(prefixed, texts))
        return front + self.digest + (self.answer_digest or bytes(32)) + u64(self.decided_at)


@dataclass(frozen=True, slots=True)
class Proof:
    """What a receipt proves."""

    state: str
    """`approved`, `answered`, `denied`, or one that nobody signs: `open`, `expired`, `withdrawn`."""
    decisions: Sequence[tuple[str, str]]
    """Each person's id and word, in the order of the receipt."""


def verify_receipt(receipt: Mapping[str, Any], key_of: KeyOf) -> Proof:
    """Verifies a receipt, `{approval, question, answers?}`. Raises `ReceiptError`.

    The signatures cover the question, the answers, and who decided what and when. Who was asked
    and how many had to agree is the word of the agent and the service.
    """
    item = _object(receipt.get("approval"))
    digest = _bytes(item.get("digest"), 32)
    if question_digest(_text(receipt.get("question"))) != digest:
        raise ReceiptError("wrong_question")
    answers = receipt.get("answers")
    known = answers if isinstance(answers, dict) else {}
    decisions = []
    for each in map(_object, _list(item.get("decisions"))):
        user = _text(each.get("user_id"))
        _verify_decision(item, digest, each, known.get(user), key_of)
        decisions.append((user, _text(each.get("decision"))))
    _verify_outcome(item, decisions)
    return Proof(_text(item.get("state")), decisions)


def _verify_decision(
    item: Mapping[str, Any], digest: bytes, each: Mapping[str, Any], answer: object, key_of: KeyOf
) -> None:
    told = each.get("answer_digest")
    signed = Decision(
        _text(item.get("approval_id")),
        _text(item.get("agent_id")),
        _text(item.get("conversation_id")),
        _text(each.get("user_id")),
        _text(each.get("key_id")),
        _text(each.get("decision")),
        digest,
        None if told is None else _bytes(told, 32),
        _milliseconds(_text(each.get("decided_at"))),
    )
    if answer is not None and answer_digest(_text(answer)) != signed.answer_digest:
        raise ReceiptError("wrong_answer")
    key = key_of(signed.user_id, signed.key_id) if _KEY_ID.fullmatch(signed.key_id) else None
    if key is None or key.key_id.hex() != signed.key_id:
        raise ReceiptError("unknown_key")
    try:
        key.verify(signed.to_bytes(), _bytes(each.get("signature"), 64))
    except E2eeError as error:
        raise ReceiptError(
            "bad_signature" if error.reason == "bad_signature" else "malformed"
        ) from None


def _verify_outcome(item: Mapping[str, Any], decisions: Sequence[tuple[str, str]]) -> None:
    """Whether those who were asked have decided once each, and enough of them for the state."""
    yes = {"approve": "approved", "ask": "answered"}.get(_text(item.get("kind")))
    if yes is None:
        _malformed()
    asked, users = _list(item.get("asked")), {user for user, _ in decisions}

    def reached(word: str, quorum: object) -> bool:
        if not isinstance(quorum, int) or isinstance(quorum, bool) or quorum < 1:
            _malformed()
        return sum(told == word for _, told in decisions) >= quorum

    state = _text(item.get("state"))
    if state == yes:
        holds = reached(yes, item.get("quorum"))
    elif state == "denied":
        holds = reached("denied", item.get("deny_quorum"))
    elif state in ("open", "expired", "withdrawn"):
        agreed = reached(yes, item.get("quorum"))
        holds = not agreed and not reached("denied", item.get("deny_quorum"))
    else:
        holds = False
    is_fair = len(users) == len(decisions) and all(user in asked for user in users)
    if not (holds and is_fair and all(word in (yes, "denied") for _, word in decisions)):
        raise ReceiptError("wrong_outcome")


def _malformed() -> NoReturn:
    raise ReceiptError("malformed")


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else _malformed()


def _text(value: object) -> str:
    return value if isinstance(value, str) else _malformed()


def _bytes(value: object, length: int) -> bytes:
    try:
        data = from_base64(_text(value))
    except E2eeError:
        _malformed()
    return data if len(data) == length else _malformed()


def _milliseconds(text: str) -> int:
    """The Unix milliseconds of a time in the one form of the service."""
    if not _TIME.fullmatch(text):
        _malformed()
    try:
        time = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        _malformed()
    return round(time.timestamp() * 1000)

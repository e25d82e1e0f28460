"""Approvals as the service shows them, and the receipts of their decisions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NotRequired, TypedDict, cast

from ..e2ee import E2eeError, PublicKeys, ids, to_base64
from ..e2ee.approval import KeyOf, Proof, question_digest, verify_receipt
from ..e2ee.trust import Standing
from ..transport.http import Call
from .opened import OpenedMessage
from .session import Session
from .types import JsonObject, Message, is_sealed

HISTORY_PAGE_MESSAGES: Final = 100

ApprovalState = Literal["open", "approved", "answered", "denied", "expired", "withdrawn"]


class ApprovalDecision(TypedDict):
    """A person's decision."""

    user_id: str
    decision: str
    decided_at: str
    answer_digest: str | None
    key_id: str
    signature: str
    message_id: NotRequired[str | None]


class Approval(TypedDict):
    """An approval as the service shows it. Its question stands in the message of the same id."""

    approval_id: str
    conversation_id: str
    agent_id: str
    seq: int
    kind: Literal["approve", "ask"]
    digest: str
    asked: list[str]
    quorum: int
    deny_quorum: int
    decisions: list[ApprovalDecision]
    state: ApprovalState
    reason: NotRequired[str | None]
    created_at: str
    expires_at: str
    closed_at: str | None


@dataclass(frozen=True, slots=True)
class Receipt:
    """An approval with the texts that its signatures are of. It is proof without the service."""

    approval: Approval
    question: str = field(repr=False)
    """The question's content, as it was sealed."""
    answers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The answers' contents by user, as they were sealed."""

    def verify(self, key_of: KeyOf) -> Proof:
        """Verifies it with the keys that `key_of` finds by a user and a key id in hex.

        Raises `ReceiptError`.
        """
        return verify_receipt(self.to_json(), key_of)

    def to_json(self) -> JsonObject:
        """The receipt as an object, for a store."""
        return {
            "approval": dict(self.approval),
            "question": self.question,
            "answers": dict(self.answers),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Receipt:
        """A receipt from a store; `verify` finds what is wrong with it."""
        return cls(stored["approval"], stored["question"], stored.get("answers") or {})


def is_question_of(approval: Approval, question: OpenedMessage) -> bool:
    """Whether this content is the question that was asked."""
    agent = ids.principal("agent", approval["agent_id"])
    is_same = to_base64(question_digest(question.source)) == approval["digest"]
    return is_same and question.sender.principal == agent


@dataclass(frozen=True, slots=True)
class ApprovalMessages:
    """The messages of an approval and of its decisions."""

    question: Message | None
    answers: Mapping[str, Message]
    """By user."""


async def approval_messages(session: Session, approval: Approval) -> ApprovalMessages:
    """Reads the messages of an approval and of its decisions."""
    deciders = {
        ids.parse(id): each["user_id"]
        for each in approval["decisions"]
        if (id := each.get("message_id"))
    }
    wanted = {ids.parse(approval["approval_id"]), *deciders}
    found = await _messages_since(session, approval, wanted)
    answers = {user: found[id] for id, user in deciders.items() if id in found}
    return ApprovalMessages(found.get(ids.parse(approval["approval_id"])), answers)


async def _messages_since(
    session: Session, approval: Approval, wanted: set[bytes]
) -> dict[bytes, Message]:
    me, conversation = session.options.me, approval["conversation_id"]
    path = f"/conversations/{conversation}/messages"
    if not me.is_user:
        path = f"/agents/{ids.principal_id(me)}{path}"
    found: dict[bytes, Message] = {}
    async for message in session.options.http.pages(path, {"limit": HISTORY_PAGE_MESSAGES}):
        if message["seq"] < approval["seq"] or len(found) == len(wanted):
            break
        if (id := ids.parse(message["message_id"])) in wanted:
            found[id] = message
    return found


async def open_either(
    session: Session, message: Message, may_be_clear: bool
) -> OpenedMessage | None:
    """The message, opened or as it came in clear; None if it is neither."""
    if not is_sealed(message["payload"]):
        id = message["conversation_id"]
        is_clear = may_be_clear and not await session.is_encrypted(id)
        return session.clear_message(message) if is_clear else None
    try:
        return await session.open_message(message, live=False)
    except E2eeError:
        return None


async def make_receipt(
    session: Session,
    approval: Approval,
    question: OpenedMessage,
    messages: ApprovalMessages,
    may_be_clear: bool,
) -> Receipt:
    """The receipt of an approval. Answers that do not open are left out."""
    answers = {}
    for user, message in messages.answers.items():
        opened = await open_either(session, message, may_be_clear)
        if opened is not None and opened.sender.principal == ids.principal("user", user):
            answers[user] = opened.source
    return Receipt(approval, question.source, answers)


async def verify_with_pins(session: Session, receipt: Receipt) -> Proof:
    """Verifies a receipt with the keys that are accepted here. Raises `ReceiptError`."""
    trust, approval = session.options.trust, receipt.approval
    for each in approval["decisions"]:
        who = ids.principal("user", each["user_id"])
        if trust.pin(who, _key_id(each["key_id"])) is None:
            await session.directory.speaker(approval["conversation_id"], who)

    def key_of(user: str, key_id: str) -> PublicKeys | None:
        pin = trust.pin(ids.principal("user", user), _key_id(key_id))
        return pin.keys if pin is not None and pin.standing != Standing.WAITING else None

    return receipt.verify(key_of)


def _key_id(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


async def read_approval(session: Session, approval_id: str) -> Approval:
    """An approval, as it stands."""
    found = await session.options.http.data(Call("GET", f"/approvals/{approval_id}"))
    return cast(Approval, found)


def words_of(text: str | None) -> JsonObject:
    """The content of an answer; empty without one."""
    content = json.loads(text) if text else {}
    return content if isinstance(content, dict) else {}

"""What agents ask a person to approve, and the person's signed decision."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from ..core.approvals import (
    Approval,
    Receipt,
    approval_messages,
    is_question_of,
    make_receipt,
    verify_with_pins,
)
from ..core.opened import OpenedMessage
from ..core.session import Session
from ..core.types import JsonObject
from ..e2ee import E2eeError, from_base64, ids, to_base64
from ..e2ee import content as contents
from ..e2ee.approval import Decision, Proof, answer_digest, clear_content
from ..errors import KeyUnavailable
from ..transport.clock import now_ms
from ..transport.http import Call

if TYPE_CHECKING:
    from .conversation import Conversation, ReceivedMessage

Word = Literal["approved", "denied", "answered"]


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """An approval that a person sees, with its question."""

    approval: Approval
    """As the service shows it."""
    conversation: Conversation
    question: OpenedMessage | None = field(repr=False)
    fault: E2eeError | None
    """Why the question does not open, or is not what was asked."""
    _received: ReceivedMessage | None = field(repr=False)
    _session: Session = field(repr=False)

    @property
    def id(self) -> str:
        """Its id, which is that of its message."""
        return self.approval["approval_id"]

    @property
    def _content(self) -> JsonObject:
        return self.question.content if self.question else {}

    @property
    def name(self) -> str:
        """The name of the question; empty if it does not open."""
        return str(self._content.get("name", ""))

    @property
    def text(self) -> str:
        """The question's words; empty if it does not open."""
        return str(self._content.get("text", ""))

    @property
    def arguments(self) -> JsonObject:
        """What is to be approved."""
        arguments = self._content.get("arguments")
        return arguments if isinstance(arguments, dict) else {}

    @property
    def choices(self) -> list[str]:
        """The answers to choose from."""
        choices = self._content.get("choices")
        return [each for each in choices or () if isinstance(each, str)]

    async def approve(self) -> Approval:
        """Says yes, signed by this device. Raises `E2eeError` if the question does not open."""
        return await self._decide("approved", {})

    async def deny(self, text: str | None = None) -> Approval:
        """Says no, signed by this device. The agent gets the words."""
        return await self._decide("denied", {} if text is None else {"text": text})

    async def answer(self, choice: str | None = None, *, text: str | None = None) -> Approval:
        """Answers by one of the choices or by a text, signed by this device."""
        told = {"choice": choice, "text": text}
        words = {name: value for name, value in told.items() if value is not None}
        return await self._decide("answered", words)

    async def _decide(self, decision: Word, words: JsonObject) -> Approval:
        if self.question is None:
            raise self.fault or E2eeError("malformed")
        body: JsonObject = {"decision": decision}
        digest: bytes | None = None
        if words:
            body["payload"], digest = await self._answer(decision, words)
            body["answer_digest"] = to_base64(digest)
        body |= self._sign(decision, digest)
        path = f"/approvals/{self.id}/decision"
        call = Call("POST", path, body=body, repeatable=True)
        decided: Approval = await self._session.options.http.data(call)
        return decided

    async def _answer(self, decision: Word, words: JsonObject) -> tuple[JsonObject, bytes]:
        """Its envelope stands at the place of a reply that is named by what it answers."""
        assert self.question is not None
        nonce = to_base64(os.urandom(16))
        content = {"type": "decision", "decision": decision, **words, "nonce": nonce}
        if self.question.re is not None:
            content["re"] = self.question.re
        # An agent that reads only what names it needs the words, too: they are signed.
        to = [self.approval["agent_id"]]
        payload = await self.conversation.payload(content, self.id, self._received, to)
        is_clear = payload is content
        source = clear_content(content) if is_clear else contents.encode(content).decode()
        return payload, answer_digest(source)

    def _sign(self, decision: Word, digest: bytes | None) -> JsonObject:
        signer, approval, now = self._session.options.signer, self.approval, now_ms()
        if signer is None:
            raise KeyUnavailable("this device has no keys yet")
        signed = Decision(
            approval["approval_id"],
            approval["agent_id"],
            approval["conversation_id"],
            ids.principal_id(self._session.options.me),
            signer.key_id.hex(),
            decision,
            from_base64(approval["digest"]),
            digest,
            now,
        )
        return {
            "decided_at": _timestamp(now),
            "key_id": signed.key_id,
            "signature": to_base64(signer.sign(signed.to_bytes())),
        }

    async def receipt(self) -> Receipt:
        """The proof of what was decided, for a store."""
        if self.question is None:
            raise self.fault or E2eeError("malformed")
        messages = await approval_messages(self._session, self.approval)
        return await make_receipt(self._session, self.approval, self.question, messages, True)

    async def verify(self, receipt: Receipt) -> Proof:
        """Verifies a receipt with the keys that are accepted here. Raises `ReceiptError`."""
        return await verify_with_pins(self._session, receipt)


async def approval_request(
    session: Session, conversation: Conversation, approval: Approval
) -> ApprovalRequest:
    """Opens the question of an approval."""
    message = (await approval_messages(session, approval)).question
    received = await conversation.open(message, live=False) if message else None
    question, fault = (received.opened, received.fault) if received else (None, None)
    if question is not None and not is_question_of(approval, question):
        question, fault = None, E2eeError("bad_signature")
    parts: tuple[Any, ...] = (question, fault, received, session)
    return ApprovalRequest(approval, conversation, *parts)


def _timestamp(ms: int) -> str:
    time = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03}Z"

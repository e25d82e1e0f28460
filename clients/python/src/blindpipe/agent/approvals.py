"""Approvals: asked by one process, decided by people days later, acted on by any process."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from ..api_errors import IdempotencyConflict
from ..core.approvals import (
    Approval,
    ApprovalState,
    Receipt,
    approval_messages,
    is_question_of,
    make_receipt,
    read_approval,
    verify_with_pins,
    words_of,
)
from ..core.session import Session
from ..core.types import JsonObject
from ..e2ee import E2eeError, ids, to_base64
from ..e2ee import content as contents
from ..e2ee.approval import ReceiptError, clear_content, question_digest
from ..e2ee.envelope import Message as MessagePlace
from ..errors import UsageError
from ..transport.http import Call
from .outbox import Draft, Outbox

DEFAULT_EXPIRY: Final = timedelta(days=3)
MAX_EXPIRY: Final = timedelta(days=30)
_DURATION: Final = re.compile(r"(\d+)([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def seconds_of(duration: str | timedelta) -> int:
    """The seconds of `90s`, `15m`, `12h`, `3d` or a `timedelta`."""
    if isinstance(duration, timedelta):
        return round(duration.total_seconds())
    parts = _DURATION.fullmatch(duration)
    if parts is None:
        raise UsageError("a duration is a number and s, m, h or d, such as 3d")
    return int(parts[1]) * _SECONDS[parts[2]]


@dataclass(frozen=True, slots=True)
class ApprovalDraft:
    """A question whose decision is signed, before it is sent."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    text: str | None = field(default=None, repr=False)
    choices: Sequence[str] = ()
    state: Mapping[str, Any] = field(default_factory=dict, repr=False)
    of: Sequence[str] = ()
    quorum: int = 1
    deny_quorum: int = 1
    expires: str | timedelta = DEFAULT_EXPIRY
    asks: bool = False
    """People answer instead of saying yes, also without choices."""

    @property
    def kind(self) -> str:
        """With choices, people answer instead of saying yes."""
        return "ask" if self.choices or self.asks else "approve"

    def content(self) -> JsonObject:
        """A digest of a question that can be guessed would tell it, so it has a nonce."""
        text = self.name if self.text is None else self.text
        return {
            "type": "approval",
            "kind": self.kind,
            "name": self.name,
            "text": text,
            "arguments": dict(self.arguments),
            "choices": list(self.choices),
            "state": dict(self.state),
            "of": list(self.of),
            "quorum": self.quorum,
            "deny_quorum": self.deny_quorum,
            "nonce": to_base64(os.urandom(16)),
            "fallback": text,
        }


@dataclass(frozen=True, slots=True)
class ApprovalResult:
    """A decision that is proven, or the end of an approval that nobody decided."""

    outcome: ApprovalState
    """`approved`, `answered` and `denied` are proven by signatures; others are the service's word."""
    name: str
    question: str = field(repr=False)
    """The words that people were shown."""
    arguments: JsonObject = field(repr=False)
    """What was asked to be approved."""
    state: JsonObject = field(repr=False)
    """The question's state."""
    choice: str | None = field(repr=False)
    """The choice of the earliest answer."""
    text: str | None = field(repr=False)
    """The words of the earliest answer or refusal."""
    approval: Approval = field(repr=False)
    receipt: Receipt = field(repr=False)
    """The proof, to be kept."""

    @property
    def decided_by(self) -> str | None:
        """The user whose decision came first; None if nobody has decided."""
        decisions = self.approval["decisions"]
        return decisions[0]["user_id"] if decisions else None

    @property
    def approved(self) -> bool:
        """Whether enough people have said yes."""
        return self.outcome == "approved"


class Approvals:
    """An agent's approvals."""

    def __init__(self, session: Session, outbox: Outbox, agent_id: str, allows_clear: bool) -> None:
        self._session = session
        self._outbox = outbox
        self._agent_id = agent_id
        self._allows_clear = allows_clear

    async def ask(self, draft: Draft, approval: ApprovalDraft) -> Approval:
        """Asks. Asked again under the same id, it answers the first one."""
        if self._outbox.is_old(draft):
            earlier = await self._outbox.find_draft(draft)
            if earlier is not None:
                return await self.read(earlier["message_id"])
        try:
            asked: Approval = await self._session.options.http.data(
                await self._call(draft, approval)
            )
        except IdempotencyConflict as conflict:
            earlier = await self._outbox.earlier_run(draft, conflict)
            return await self.read(earlier["message_id"])
        return asked

    async def _call(self, draft: Draft, approval: ApprovalDraft) -> Call:
        conversation = draft.conversation_id
        if await self._outbox.goes_clear(draft):
            payload, source = draft.content, clear_content(draft.content)
        else:
            data = contents.encode(draft.content)
            place = MessagePlace(ids.parse(draft.client_message_id), None)
            payload = await self._session.seal_payload(conversation, place, data)
            source = data.decode()
        body: JsonObject = {
            "payload": payload,
            "client_message_id": draft.client_message_id,
            "kind": approval.kind,
            "digest": to_base64(question_digest(source)),
            "quorum": approval.quorum,
            "deny_quorum": approval.deny_quorum,
            "expires_in_seconds": seconds_of(approval.expires),
        }
        if approval.of:
            body["of"] = list(approval.of)
        path = f"/agents/{self._agent_id}/conversations/{conversation}/approvals"
        return Call("POST", path, body=body, repeatable=True)

    async def read(self, approval_id: str) -> Approval:
        """An approval of this agent, as it stands."""
        return await read_approval(self._session, approval_id)

    async def withdraw(self, approval_id: str) -> Approval:
        """Takes an approval back that nobody has decided."""
        call = Call("POST", f"/approvals/{approval_id}/withdraw", body={}, repeatable=True)
        withdrawn: Approval = await self._session.options.http.data(call)
        return withdrawn

    async def result(self, approval: Approval) -> ApprovalResult | None:
        """The result of an approval that has ended; None for a question of another program.

        Raises `bad_signature` if the signatures do not prove what is said.
        """
        messages = await approval_messages(self._session, approval)
        if messages.question is None:
            return None
        question = await self._outbox.open_own(messages.question)
        if question is None:
            return None
        if not is_question_of(approval, question) or not _is_asked_so(question.content, approval):
            raise E2eeError("bad_signature")
        receipt = await make_receipt(
            self._session, approval, question, messages, self._allows_clear
        )
        try:
            await verify_with_pins(self._session, receipt)
        except ReceiptError:
            raise E2eeError("bad_signature") from None
        return _result_of(question.content, approval, receipt)


def _is_asked_so(question: JsonObject, approval: Approval) -> bool:
    """Whether the service asks those, and so many, as the agent has said."""
    of, told = question.get("of"), dict(approval)
    names = ("kind", "quorum", "deny_quorum")
    is_same = all(question.get(name) == told.get(name) for name in names)
    return is_same and isinstance(of, list) and (not of or set(approval["asked"]) <= set(of))


def _result_of(question: JsonObject, approval: Approval, receipt: Receipt) -> ApprovalResult:
    is_no = approval["state"] == "denied"
    deciders = [
        each["user_id"]
        for each in approval["decisions"]
        if (each["decision"] == "denied") == is_no and each["user_id"] in receipt.answers
    ]
    words = words_of(receipt.answers[deciders[0]] if deciders else None)
    choice, text = words.get("choice"), words.get("text")
    return ApprovalResult(
        approval["state"],
        str(question.get("name", "")),
        str(question.get("text", "")),
        question.get("arguments") or {},
        question.get("state") or {},
        choice if isinstance(choice, str) else None,
        text if isinstance(text, str) else None,
        approval,
        receipt,
    )

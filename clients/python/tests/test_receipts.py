"""Decisions are signed, and receipts verified offline, as the vectors say."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from blindpipe.e2ee import PublicKeys, from_base64, to_base64
from blindpipe.e2ee.approval import (
    Decision,
    ReceiptError,
    answer_digest,
    clear_content,
    question_digest,
    verify_receipt,
)
from support import hexed, private, public, read

VECTORS = read("approvals.json")


def _key_of(user: str, key_id: str) -> PublicKeys | None:
    found = [key for key in VECTORS["keys"].get(user, ()) if key["key_id"] == key_id]
    return public(found[0]) if found else None


def test_decisions_are_signed_as_the_vectors_say() -> None:
    assert VECTORS["signatures"]
    for case in VECTORS["signatures"]:
        keys, answer = private(case["keys"]), case["answer"]
        digest = question_digest(case["question"])
        answered = None if answer is None else answer_digest(answer)
        assert to_base64(digest) == case["digest"]
        assert (answered and to_base64(answered)) == case["answer_digest"]
        signed = Decision(
            case["approval_id"],
            case["agent_id"],
            case["conversation_id"],
            case["user_id"],
            keys.key_id.hex(),
            case["decision"],
            digest,
            answered,
            case["decided_at_ms"],
        )
        assert signed.to_bytes() == hexed(case, "signed")
        assert keys.sign(signed.to_bytes()) == from_base64(case["signature"])


def test_receipts_prove_what_the_vectors_say() -> None:
    assert VECTORS["receipts"]
    for case in VECTORS["receipts"]:
        proof = verify_receipt(case["receipt"], _key_of)
        assert proof.state == case["proves"]["state"]
        assert [list(each) for each in proof.decisions] == case["proves"]["decisions"]


def _changed(receipt: dict[str, Any], place: str, value: object) -> dict[str, Any]:
    changed: Any = copy.deepcopy(receipt)
    *path, last = place.strip("/").split("/")
    at = changed
    for name in path:
        at = at[int(name)] if isinstance(at, list) else at[name]
    at[last] = value
    return dict(changed)


def _refused() -> list[tuple[str, dict[str, Any], str]]:
    base = VECTORS["changed"]
    changes = [
        (case["place"], _changed(base["receipt"], case["place"], case["value"]), case["reason"])
        for case in base["changes"]
    ]
    return changes + [("refused", case["receipt"], case["reason"]) for case in VECTORS["refused"]]


@pytest.mark.parametrize(("place", "receipt", "reason"), _refused())
def test_a_changed_receipt_proves_nothing(
    place: str, receipt: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ReceiptError) as refused:
        verify_receipt(receipt, _key_of)
    assert refused.value.reason == reason, place


def test_a_receipt_of_anything_else_is_malformed() -> None:
    good = VECTORS["receipts"][0]["receipt"]
    receipts: list[dict[str, Any]] = [
        {},
        {"approval": []},
        {**good, "approval": {}},
        {**good, "question": 7},
    ]
    for receipt in receipts:
        with pytest.raises(ReceiptError) as refused:
            verify_receipt(receipt, _key_of)
        assert refused.value.reason == "malformed"


def test_a_content_in_clear_has_one_spelling() -> None:
    payload = {"type": "approval", "\U0001f600": 1, "\uffee": {"b": [True, None], "a": "é\n"}}
    told = '{"type":"approval","\uffee":{"a":"é\\n","b":[true,null]},"\U0001f600":1}'
    assert clear_content(payload) == told

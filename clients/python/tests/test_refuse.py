"""Every single-byte change of an envelope and a wrap is refused, for the reason told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from blindpipe.e2ee import E2eeError, envelope, wrap
from support import Json, epoch_key, hexed, place, principal, private, public, read


def _changes(case: Json, values: Callable[[int], Iterator[int]]) -> Iterator[tuple[bytes, str]]:
    """Each changed text and its reason; `values` are the bits flipped at a position."""
    sealed = hexed(case, "bytes")
    covered = 0
    for change in case["changes"]:
        assert change["from"] == covered
        covered = change["to"]
        for at in range(change["from"], change["to"]):
            for flip in values(at):
                value = sealed[at] ^ flip
                reason = change["except"].get(f"{value:02x}", change["reason"])
                yield sealed[:at] + bytes([value]) + sealed[at + 1 :], reason
    assert covered == len(sealed)


def _refused(run: Callable[[], object], reason: str, changed: bytes) -> None:
    try:
        run()
    except E2eeError as error:
        assert error.reason == reason, changed.hex()
    else:
        pytest.fail(f"opened: {changed.hex()}")


@pytest.mark.parametrize("name", ["envelope", "envelope_by_slot"])
def test_envelope(name: str) -> None:
    case = read("refuse.json")[name]
    key = epoch_key(case, hexed(case, "conversation"), case["epoch"])
    keys, sender, at = public(case), principal(case, "sender"), place(case["place"])

    def open(changed: bytes) -> object:
        return envelope.open(
            changed,
            key.conversation,
            sender,
            at,
            lambda epoch, sid: key if (epoch, sid) == (key.epoch, key.sid) else None,
            lambda id: keys if id == keys.key_id else None,
        )

    open(hexed(case, "bytes"))
    for changed, reason in _changes(case, lambda _at: iter(range(1, 256))):
        _refused(lambda: open(changed), reason, changed)


def test_wrap() -> None:
    case = read("refuse.json")["wrap"]
    keys, recipient = private(case), principal(case, "recipient")

    def open(changed: bytes) -> object:
        conversation, epoch = hexed(case, "conversation"), case["epoch"]
        return wrap.open(changed, conversation, epoch, recipient, keys, lambda _p, _k: None)

    open(hexed(case, "bytes"))
    # From byte 17 on a change costs an exchange of keys.
    for changed, reason in _changes(
        case, lambda at: iter(range(1, 256) if at < 17 else (1, 0x80, 0xFF))
    ):
        _refused(lambda: open(changed), reason, changed)

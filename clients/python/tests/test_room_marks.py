"""The marks of a conversation outlive a restart whole, whichever client wrote them."""

from __future__ import annotations

from blindpipe.e2ee import Principal
from blindpipe.e2ee.room import EpochMarks, Room, StoredMarks

CONVERSATION = bytes(16)
ADA = Principal.user(bytes([1] * 16))


def test_what_another_client_has_marked_comes_back() -> None:
    stored: StoredMarks = {
        "epoch": 0,
        "time": 0,
        "members": {ADA.to_bytes().hex(): "all"},
        "encrypted": True,
        "changed": True,
    }
    room = Room.resumed(CONVERSATION, True, EpochMarks.stored(stored))
    assert room.was_encrypted and room.due(0) == "change"
    assert room.marks.store() == stored
    assert EpochMarks.stored({"epoch": 3, "time": 7}).store() == {"epoch": 3, "time": 7}


def test_a_change_of_keys_is_marked() -> None:
    room = Room.resumed(CONVERSATION, False, EpochMarks())
    room.members({ADA: "all"})
    assert not room.marks.changed
    room.keys_changed(ADA)
    assert room.marks.store() == {"epoch": 0, "time": 0, "changed": True}

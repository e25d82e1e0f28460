"""The state machine: the table of cases that all languages run."""

from __future__ import annotations

from typing import Any

import pytest
from blindpipe.core.session import signed_at
from blindpipe.e2ee import Principal
from blindpipe.e2ee.consent import Asked, Consents, Sensitivity, Tool
from blindpipe.e2ee.envelope import Request
from blindpipe.e2ee.room import Incoming, Refused, Room, Rotate, Seal, ServerEpoch, Shown, Wait
from blindpipe.e2ee.trust import DirectoryKey, Introduction, Notice, NoticeKind, Trust
from blindpipe.e2ee.wrap import OpeningKey
from blindpipe.e2ee.errors import E2eeError
from support import Json, hexed, place, principal, read, secret


def _notices(notices: list[Notice]) -> list[Any]:
    return [
        [n.kind.name.lower(), n.about.to_bytes().hex(), n.key.hex() if n.key else None]
        for n in notices
    ]


def _directory_key(key: Json) -> DirectoryKey:
    introduction = key["introduction"] and Introduction(
        hexed(key["introduction"], "by"), hexed(key["introduction"], "signature")
    )
    return DirectoryKey(
        key["device_id"],
        hexed(key, "public_key"),
        hexed(key, "signing_public_key"),
        key["schemes"],
        introduction,
        key["retired"],
        key.get("retired_at"),
    )


def _clock(event: Json) -> int:
    """Without a time, no key of the table has an end."""
    now: int = event.get("now", 0)
    return now


def _shown(shown: Shown) -> Json:
    standing = shown.standing.name.lower() if shown.standing is not None else None
    return {"shown": standing, "notices": _notices(shown.notices)}


class Machine:
    """A client with one conversation, driven by the events of the table."""

    def __init__(self, case: Json) -> None:
        self.keys = [OpeningKey(hexed(k, "key_id"), secret(k, "x25519_private")) for k in case["keys"]]
        self.me = principal(case, "me")
        self.trust = Trust(self.me, case["policy"], [key.key_id for key in self.keys])
        self.room = Room(hexed(case, "conversation"), case["plaintext"])
        self.consents = Consents(
            {t["tool"]: Tool(t["scope"], Sensitivity[t["sensitivity"].upper()]) for t in case["tools"]}
        )
        self.asked: Asked | None = None

    def step(self, event: Json) -> Json:
        try:
            result: Json = getattr(self, "do_" + event["do"])(event)
        except Refused as refused:
            return {"refused": refused.reason, "notices": _notices(refused.notices)}
        except E2eeError as error:
            return {"refused": error.reason}
        return result

    def do_directory(self, event: Json) -> Json:
        of = principal(event, "of")
        keys = [_directory_key(key) for key in event["keys"]]
        notices = self.trust.directory(of, keys, _clock(event))
        if notices:
            self.room.keys_changed(of)
        return {"notices": _notices(notices)}

    def do_confirm(self, event: Json) -> Json:
        of = principal(event, "of")
        done = self.trust.confirm(of, hexed(event, "key"), _clock(event))
        self.room.keys_changed(of)
        return {"done": done}

    def do_safety_number(self, event: Json) -> Json:
        return {"number": self.trust.safety_number(principal(event, "of"), _clock(event))}

    def do_verify_number(self, event: Json) -> Json:
        of = principal(event, "of")
        return self._compared(of, self.trust.verify_number(of, event["number"], _clock(event)))

    def do_verify(self, event: Json) -> Json:
        of = principal(event, "of")
        return self._compared(of, self.trust.verify(of, hexed(event, "key"), _clock(event)))

    def do_link(self, event: Json) -> Json:
        of = principal(event, "of")
        return self._compared(of, self.trust.link(of, hexed(event, "key"), _clock(event)))

    def _compared(self, of: Principal, notices: list[Notice] | None) -> Json:
        if notices:
            self.room.keys_changed(of)
        return {"done": notices is not None, "notices": _notices(notices or [])}

    def do_introduced_by(self, event: Json) -> Json:
        of, now = principal(event, "of"), _clock(event)
        return {"devices": sorted(self.trust.introduced_by(of, event["device_id"], now))}

    def do_standing(self, event: Json) -> Json:
        of = principal(event, "of")
        pin = self.trust.pin(of, hexed(event, "key"))
        return {
            "standing": pin.standing.name.lower() if pin else None,
            "retired": pin is not None and pin.is_retired(_clock(event)),
            "speaks_bp1": self.trust.speaks_bp1(of),
        }

    def do_members(self, event: Json) -> Json:
        members = {principal(row, "principal"): row["visibility"] for row in event["list"]}
        return {"notices": _notices(self.room.members(members))}

    def do_server_epoch(self, event: Json) -> Json:
        self.room.server = ServerEpoch(
            event["epoch"], event["rotation_required"], event["messages"]
        )
        return {}

    def do_wrap(self, event: Json) -> Json:
        taken = self.room.wrap(
            self.trust, self.keys, event["epoch"], hexed(event, "wrap"), event["now"]
        )
        return {
            "newest": taken.newest,
            "rotator": taken.rotator.to_bytes().hex(),
            "sid": taken.sid.hex(),
            "notices": _notices(taken.notices),
        }

    def do_sealing(self, event: Json) -> Json:
        match self.room.sealing(self.me, event["answered"], event["now"]):
            case Seal(epoch, sid):
                return {"epoch": epoch, "sid": sid.hex()}
            case Rotate(base):
                return {"rotate": base}
            case Wait():
                return {"wait": True}

    def do_writing(self, event: Json) -> Json:
        return {"writing": self.room.writing(self.trust, event["clear_chosen"])}

    def do_give(self, event: Json) -> Json:
        of, key = principal(event, "of"), _directory_key(event["key"])
        given = self.room.give(self.trust, of, key, _clock(event))
        if isinstance(given, NoticeKind):
            return {"given": "nothing", "because": given.name.lower()}
        return {"given": given}

    def _incoming(self, event: Json) -> Incoming:
        sealed, answered = event["envelope"], event["answered"]
        return Incoming(
            principal(event, "sender"),
            place(event["place"]),
            bytes.fromhex(sealed) if sealed is not None else None,
            event["created_at"],
            event["live"],
            bytes.fromhex(answered) if answered is not None else None,
        )

    def do_message(self, event: Json) -> Json:
        shown = self.room.message(self.trust, self._incoming(event), event["now"])
        return _shown(shown) if shown else {"repeated": True}

    def do_request(self, event: Json) -> Json:
        incoming = self._incoming(event)
        shown = self.room.open(self.trust, incoming, event["now"])
        assert isinstance(incoming.place, Request)
        manifest = event.get("manifest")
        decision = self.consents.decide(
            self.me,
            self.room.conversation,
            incoming.sender,
            incoming.place,
            Sensitivity[manifest.upper()] if manifest else None,
            event["now"],
        )
        return {"decision": decision, "notices": _notices(shown.notices)}

    def do_remember(self, event: Json) -> Json:
        agent, request = principal(event, "agent"), place(event["place"])
        assert isinstance(request, Request)
        here, now, days = self.room.conversation, event["now"], event["days"]
        return {"done": self.consents.remember(here, agent, request.tool, now, days)}

    def do_withdraw(self, event: Json) -> Json:
        agent = principal(event, "agent")
        return {"done": self.consents.withdraw(agent, event["scope"], self.room.conversation)}

    def do_begin(self, event: Json) -> Json:
        return {"done": self.consents.begin(principal(event, "agent"), event["request_id"], 0)}

    def do_ask(self, event: Json) -> Json:
        request = place(event["place"])
        assert isinstance(request, Request)
        content = event["content"].encode()
        self.asked = Asked.of(self.room.conversation, self.me.id, request, content)
        return {"digest": self.asked.digest.hex()}

    def do_response(self, event: Json) -> Json:
        assert self.asked is not None
        return _shown(
            self.asked.prove(self.room, self.trust, self._incoming(event), event["now"])
        )


@pytest.mark.parametrize("case", read("states.json")["cases"], ids=lambda case: case["name"])
def test_states(case: Json) -> None:
    machine = Machine(case)
    for number, step in enumerate(case["steps"]):
        assert machine.step(step["event"]) == step["expect"], f"step {number}: {step['event']}"


@pytest.mark.parametrize("time", [2**64 - 1, 2**63, 253402300800000])
def test_a_signed_time_that_no_date_holds_is_the_last_date(time: int) -> None:
    assert signed_at(time).isoformat() == "9999-12-31T23:59:59.999999+00:00"
    assert signed_at(0).isoformat() == "1970-01-01T00:00:00+00:00"


def test_a_message_is_remembered_for_31_days_however_many_come() -> None:
    room, sender = Room(bytes(16)), Principal.user(bytes(16))
    day = 24 * 60 * 60 * 1000
    now, age = 100 * day, 31 * day

    def remember(number: int, time: int, now: int) -> int | None:
        return room.remember(sender, number.to_bytes(16, "big"), time, now)

    def is_remembered(number: int) -> bool:
        return room.is_remembered(sender, number.to_bytes(16, "big"))

    assert remember(0, now - day, now) == now
    assert remember(1, now + day, now) == now + day
    assert remember(2, 2**64 - 1, now) == now + age
    assert {remember(number, now, now) for number in range(3, 20_003)} == {now}
    assert {remember(number, now, now) for number in range(20_003)} == {None}
    again = Room(bytes(16))
    again.remember_all(room.remembered)
    assert again.remembered == room.remembered and len(room.remembered) == 20_003 * 41
    remember(30_000, now + age + 1, now + age + 1)
    assert not is_remembered(0)
    assert is_remembered(1), "it could be handled"
    remember(30_001, now + day + age + 1, now + day + age + 1)
    assert not is_remembered(1) and is_remembered(2)

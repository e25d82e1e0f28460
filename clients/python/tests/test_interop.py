"""Each language seals random things and the other opens them."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from blindpipe.e2ee import EpochKey, Principal, PrivateKeys, Secret, envelope, file, wrap
from support import Json

PROGRAM = os.environ.get("INTEROP", "")
Ask = Callable[[Json], Json]

pytestmark = pytest.mark.skipif(
    not PROGRAM, reason="INTEROP names the Rust example `interop`; make sets it"
)


@pytest.fixture(scope="module")
def rust() -> Iterator[Ask]:
    with subprocess.Popen(
        [PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        stdin, stdout = process.stdin, process.stdout

        def ask(request: Json) -> Json:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            answer: Json = json.loads(stdout.readline())
            return answer

        yield ask
        stdin.close()


def _hexed(**fields: bytes) -> dict[str, str]:
    return {name: value.hex() for name, value in fields.items()}


def _private(keys: PrivateKeys) -> Json:
    return _hexed(x25519_private=keys.x25519.expose(), ed25519_seed=keys.ed25519_seed.expose())


def _public(keys: PrivateKeys) -> Json:
    public = keys.public
    return _hexed(public_key=public.public_key, signing_public_key=public.signing_public_key)


def _text() -> str:
    alphabet = "abc äöü 😀 \" \\ \n \0 €"
    return "".join(random.choices(alphabet, k=random.choice([0, 1, 30, 1000, 20_000])))


def _place(user: bool) -> tuple[envelope.Place, Json]:
    """A random place, and its JSON."""
    kind = random.choice([1, 4] if user else [1, 2, 3])
    id, text = os.urandom(16), _text()[:100]
    none: Any = random.choice([None, "x"])
    match kind:
        case 1:
            reply = random.choice([None, os.urandom(16)])
            json_reply = reply.hex() if reply else None
            place: envelope.Place = envelope.Message(id, reply)
            fields: Json = {"client_message_id": id.hex(), "in_reply_to": json_reply}
        case 2:
            place = envelope.Delta(text, 2**40)
            fields = {"stream_id": text, "n": 2**40}
        case 3:
            place = envelope.Request(id, "r", text, "s", none)
            fields = {"asked": id.hex(), "request_id": "r", "tool": text, "scope": "s"}
            fields["device_id"] = none
        case _:
            place = envelope.Response(id + id, "r", text, none)
            fields = {"digest": (id + id).hex(), "request_id": "r", "status": text, "reason": none}
    return place, fields | {"kind": kind}


@pytest.mark.parametrize("seed", range(60))
def test_envelopes(rust: Ask, seed: int) -> None:
    random.seed(seed)
    conversation, epoch = os.urandom(16), random.randrange(2**32)
    full, keys, agent = EpochKey.random(conversation, epoch), PrivateKeys.random(), os.urandom(16)
    lane_secret = full.addressed(agent)
    assert lane_secret
    lane = EpochKey(conversation, epoch, full.sid, lane_secret, agent)
    lane_json = _hexed(lane_agent=agent, lane_secret=lane_secret.expose(), sid=full.sid)
    full_json = _hexed(secret=full.secret.expose())
    user = seed % 2 == 0
    sender = Principal.user(os.urandom(16)) if user else Principal.agent(agent)
    place, place_json = _place(user)
    readers = sorted([agent, *(os.urandom(16) for _ in range(seed % 4))]) if user else []
    writes = (full, full_json) if user else (lane, lane_json)
    content, time, view = json.dumps({"text": _text()}), random.randrange(2**53), os.urandom(20)
    common = {
        "conversation": conversation.hex(),
        "epoch": epoch,
        "sender": sender.to_bytes().hex(),
        "place": place_json,
    }
    theirs = rust(
        common
        | writes[1]
        | _private(keys)
        | {"do": "seal", "content": content, "time": time, "view": view.hex()}
        | {"readers": [reader.hex() for reader in readers]}
    )
    ours = envelope.seal(
        writes[0], sender, keys, place, time, content.encode(), readers=readers, view=view
    )
    for key, key_json in ((full, full_json), (lane, lane_json)):
        opened = envelope.open(
            bytes.fromhex(theirs["envelope"]),
            conversation,
            sender,
            place,
            lambda _e, _s: key,
            lambda _k: keys.public,
        )
        assert (opened.content.decode(), opened.time, opened.view) == (content, time, view)
        request = common | key_json | _public(keys) | {"do": "open", "envelope": ours.hex()}
        assert rust(request) == {"content": content, "time": time, "view": view.hex()}


@pytest.mark.parametrize("addressed", [False, True])
def test_wraps(rust: Ask, addressed: bool) -> None:
    for _ in range(20):
        conversation, epoch = os.urandom(16), random.randrange(2**32)
        key, mine, theirs = EpochKey.random(conversation, epoch), *_two_keys()
        agent, rotator, previous = Principal.agent(os.urandom(16)), os.urandom(16), os.urandom(16)
        common = _hexed(
            conversation=conversation,
            secret=key.secret.expose(),
            recipient=agent.to_bytes(),
            rotator=rotator,
            previous=previous,
        )
        made = rust(
            common
            | _private(theirs)
            | _public(mine)
            | {"do": "wrap", "epoch": epoch, "time": 5, "addressed": addressed}
        )
        opened = wrap.open(
            bytes.fromhex(made["wrap"]), conversation, epoch, agent, mine, lambda _p, _k: theirs.public
        )
        opened.verify(theirs.public)
        secret = key.addressed(agent.id) if addressed else key.secret
        assert secret and opened.key.secret == secret and opened.previous == previous
        rotation = wrap.Rotation(key, rotator, theirs, 5, previous)
        ours = wrap.seal(rotation, agent, mine.public, addressed)
        answer = rust(
            common
            | _private(mine)
            | _public(theirs)
            | {"do": "unwrap", "epoch": epoch, "wrap": ours.hex()}
        )
        assert answer["secret"] == secret.expose().hex()
        assert answer["rotator"] == Principal.user(rotator).to_bytes().hex()


def _two_keys() -> tuple[PrivateKeys, PrivateKeys]:
    return PrivateKeys.random(), PrivateKeys.random()


def test_files(rust: Ask) -> None:
    for length in (0, 1, 65_535, 65_536, 65_537, 200_000):
        content = os.urandom(length)
        theirs = rust({"do": "seal_file", "content": content.hex()})
        sealed, key, told = (bytes.fromhex(theirs[name]) for name in ("file", "key", "sha256"))
        assert file.open(sealed, Secret(key), told) == content
        ours = file.seal(content)
        request = _hexed(file=ours.data, key=ours.key.expose(), sha256=ours.sha256)
        assert rust(request | {"do": "open_file"}) == {"content": content.hex()}

"""The vectors that the Rust crate makes hold here too."""

from __future__ import annotations

import hashlib
import inspect

import pytest
from blindpipe.core.files import named_file
from blindpipe.e2ee import (
    ED25519_SMALL_ORDER,
    X25519_SMALL_ORDER,
    AgentKey,
    E2eeError,
    EpochKey,
    Principal,
    PrivateKeys,
    PublicKeys,
    Secret,
    backup,
    content,
    envelope,
    file,
    ids,
    introduce,
    keylog,
    safety,
    search,
    verify_introduction,
    wrap,
)
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from support import Json, hexed, place, principal, private, public, read, refused, secret


def test_keys() -> None:
    made = read("keys.json")
    for case in made["devices"] + made["agents"]:
        keys = private(case)
        assert keys.public == public(case)
        assert keys.key_id == hexed(case, "key_id")
    for case in made["agents"]:
        agent = AgentKey(secret(case, "seed"))
        assert agent.to_text() == case["string"]
        assert AgentKey.parse(case["string"]) == agent
        assert agent.keys().key_id == hexed(case, "key_id")
    for text in made["agent_strings_refused"]:
        with refused("malformed"):
            AgentKey.parse(text)
    first, second = (case["string"] for case in made["agents"][:2])
    assert len(AgentKey.parse_all(f"{first}, {second}")) == 2


def test_keys_of_small_order_are_refused() -> None:
    made = read("keys.json")
    good = public(made["devices"][0])
    assert {key.hex() for key in ED25519_SMALL_ORDER} == set(made["signing_keys_refused"])
    assert {key.hex() for key in X25519_SMALL_ORDER} == set(made["public_keys_refused"])
    for sign in (0, 0x80):
        for name in ("signing_keys_refused", "public_keys_refused"):
            for text in made[name]:
                key = bytearray.fromhex(text)
                key[31] |= sign
                with refused("wrong_key"):
                    if name == "public_keys_refused":
                        PublicKeys(bytes(key), good.signing_public_key)
                    else:
                        PublicKeys(good.public_key, bytes(key))


def test_epochs() -> None:
    case = read("keys.json")["epoch"]
    key = EpochKey.new(hexed(case, "conversation"), case["epoch"], secret(case, "secret"))
    assert key.sid == hexed(case, "sid")
    assert key.everyone() == secret(case, "lane_everyone")
    assert key.addressed(hexed(case, "addressed_agent")) == secret(case, "lane_addressed")


def test_introductions() -> None:
    for case in read("introductions.json")["cases"]:
        owner, new, by = principal(case, "owner"), public(case), private(case["by"])
        signature = introduce(by, owner, case["device_id"], new)
        assert signature == hexed(case, "signature")
        verify_introduction(by.public, owner, case["device_id"], new, signature)
        with refused("bad_signature"):
            verify_introduction(by.public, owner, "other", new, signature)


def test_wraps() -> None:
    made = read("wraps.json")
    conversation, epoch = hexed(made, "conversation"), made["epoch"]
    for case in made["cases"]:
        recipient, keys = principal(case, "recipient"), private(case["recipient_keys"])
        rotator = public(case["rotator_keys"])
        opened = wrap.open(
            hexed(case, "wrap"), conversation, epoch, recipient, keys, lambda _p, _k: rotator
        )
        opened.verify(rotator)
        assert opened.key.secret == secret(case, "secret")
        assert opened.key.sid == hexed(case, "sid")
        assert opened.previous == hexed(case, "previous")
        assert opened.rotator == principal(case, "rotator")
        assert opened.rotator_key == hexed(case, "rotator_key")
        assert opened.time == case["time"]
        assert (opened.key.lane_agent is not None) == (case["kind"] == 2)
    with refused("no_epoch_key"):
        wrap.recipient_key(hexed(made, "not_given"))


def _lane(made: Json) -> EpochKey:
    lane = secret(made, "lane_secret")
    return EpochKey(
        hexed(made, "conversation"), made["epoch"], hexed(made, "sid"), lane, hexed(made, "lane_agent")
    )


def test_envelopes() -> None:
    made = read("envelopes.json")
    conversation = hexed(made, "conversation")
    full = EpochKey.new(conversation, made["epoch"], secret(made, "secret"))
    assert full.sid == hexed(made, "sid")
    for case in made["cases"]:
        sender, keys, at = principal(case, "sender"), private(case), place(case["place"])
        assert at.context() == hexed(case, "ctx")
        readers = [bytes.fromhex(id) for id in case["readers"]]
        text = case["content"].encode()
        sealed = envelope._seal_with(
            hexed(case, "salt"),
            _lane(made) if case["lane_agent"] else full,
            sender,
            keys,
            at,
            case["time"],
            text,
            readers,
            hexed(case, "view"),
        )
        assert sealed == hexed(case, "envelope"), case["name"]
        assert envelope.fingerprint(sealed) == hexed(case, "fingerprint")
        in_lane = case["lane_agent"] or made["lane_agent"] in case["readers"]
        for key in [full, _lane(made)] if in_lane else [full]:
            opened = envelope.open(
                sealed, conversation, sender, at, lambda _e, _s: key, lambda _k: keys.public
            )
            assert (opened.content, opened.time) == (text, case["time"])
            assert opened.view == hexed(case, "view")
    for case in made["digests"]:
        request = place(case["place"])
        assert isinstance(request, envelope.Request)
        digest = request.digest(
            hexed(case, "conversation"), hexed(case, "agent"), case["content"].encode()
        )
        assert digest == hexed(case, "digest")


@pytest.mark.parametrize("case", read("envelopes.json")["large"], ids=lambda case: case["length"])
def test_large_envelopes(case: Json) -> None:
    made = read("envelopes.json")
    key = EpochKey.new(hexed(made, "conversation"), made["epoch"], secret(made, "secret"))
    text = b"{}".ljust(case["length"])
    plaintext = (hexed(case, "front") + text).ljust(case["padded"], b"\0")
    cipher = AESGCM(hexed(case, "key"))
    sealed = cipher.encrypt(hexed(case, "nonce"), plaintext, hexed(case, "aad"))

    def open() -> bytes:
        return envelope.open(
            hexed(case, "header") + sealed,
            key.conversation,
            principal(case, "sender"),
            place(case["place"]),
            lambda _e, _s: key,
            lambda _k: public(case),
        ).content

    if case["reason"] is None:
        assert open() == text
        return
    with refused(case["reason"]):
        open()
    sender, keys = principal(case, "sender"), PrivateKeys.random()
    for too_large in (text, b"[]"):
        with refused("malformed" if too_large is text else "not_json"):
            envelope.seal(key, sender, keys, place(case["place"]), 1, too_large)


@pytest.mark.parametrize("case", read("envelopes.json")["refused"], ids=lambda case: case["name"])
def test_refused_envelopes(case: Json) -> None:
    made = read("envelopes.json")
    full = EpochKey.new(hexed(made, "conversation"), made["epoch"], secret(made, "secret"))
    key = _lane(made) if case["by_slot"] else full
    keys = public(case) if case["public_key"] else None
    with refused(case["reason"]):
        envelope.open(
            hexed(case, "envelope"),
            key.conversation,
            principal(case, "sender"),
            place(case["place"]),
            lambda epoch, sid: key if (epoch, sid) == (key.epoch, key.sid) else None,
            lambda id: keys if keys and keys.key_id == id else None,
        )


def test_contents() -> None:
    made = read("contents.json")
    for text in made["accepted"]:
        assert isinstance(content.parse(bytes.fromhex(text)), dict)
    for text in made["refused"]:
        with refused("not_json"):
            content.parse(bytes.fromhex(text))


def test_paddings() -> None:
    for case in read("paddings.json")["cases"]:
        assert content.padded(case["length"]) == case["padded"]
        assert content.padded(case["length"], 256) == case["padded_delta"]


def test_files() -> None:
    made = read("files.json")
    for case in made["cases"]:
        length = case["length"]
        text = (case["pattern"] * length)[:length].encode()
        key = secret(case, "key")
        sealed = file._seal_with(text, key, hexed(case, "salt"))
        assert len(sealed.data) == case["file_length"]
        assert sealed.sha256 == hexed(case, "sha256")
        if case["file"]:
            assert sealed.data == hexed(case, "file")
        assert file.open(sealed.data, key, sealed.sha256) == text
    key = Secret(bytes([4]) * 32)
    for case in made["refused"]:
        if "file" in case:
            data = hexed(case, "file")
        else:
            whole = file._seal_with(b"z" * case["of_length"], key, bytes([5]) * 16).data
            data = whole[: case["cut"]] + hexed(case, "end")
        with refused(case["reason"]):
            file.open(data, key, hexed(case, "sha256"))


def test_messages_that_name_files() -> None:
    made = read("files.json")
    found = named_file(made["message"])
    assert found.path == "/objects/" + made["message"]["object_key"]
    for message in made["messages_refused"]:
        with refused("malformed"):
            named_file(message)


def test_cut_and_swapped_files() -> None:
    whole = file.seal(b"z" * (3 * file.CHUNK_BYTES))
    head, chunk = whole.data[:20], file.CHUNK_BYTES + 16
    chunks = [whole.data[20 + n * chunk : 20 + (n + 1) * chunk] for n in range(3)]
    for order in ([0], [0, 1], [1, 0, 2], [2], [0, 1, 2, 2]):
        data = head + b"".join(chunks[n] for n in order)
        with refused("bad_ciphertext"):
            file.open(data, whole.key, hashlib.sha256(data).digest())
    with refused("bad_ciphertext"):
        file.open(whole.data, whole.key, bytes(32))


def test_backups() -> None:
    case = read("backups.json")
    costs = backup.Costs(case["m"], case["t"], case["p"])
    key = backup.BackupKey.derive(case["password"], hexed(case, "salt"), costs)
    other = backup.BackupKey.derive(case["password_decomposed"], hexed(case, "salt"), costs)
    assert key.kek == other.kek == secret(case, "kek")
    device = private(case["device"])
    earlier = [(hexed(held, "key_id"), secret(held, "x25519_private")) for held in case["earlier"]]
    user, device_id = hexed(case, "user"), case["device_id"]
    nonces = (hexed(case, "nonce_a"), hexed(case, "nonce_b"))
    owner = backup.BackupOwner(user, device_id, device.public)
    made = backup._seal_with(nonces, key, owner, device, earlier)
    assert made.backup_a == hexed(case, "backup_a")
    assert made.backup_b == hexed(case, "backup_b")
    restored = backup.open(key, owner, made)
    assert restored.keys.key_id == device.key_id
    assert list(restored.earlier) == earlier
    wrong = backup.BackupKey.derive("another", hexed(case, "salt"), costs)
    with refused("wrong_key"):
        backup.open(wrong, owner, made)
    with refused("wrong_key"):
        backup.open(key, backup.BackupOwner(user, "laptop-2", device.public), made)
    keys = {case["password"]: key}
    for row in case["refused"]:
        with refused(row["reason"]):
            password = row["password"]
            if password not in keys:
                keys[password] = backup.BackupKey.derive(password, hexed(case, "salt"), costs)
            shown = backup.BackupOwner(hexed(row, "user"), row["device_id"], public(row["device"]))
            halves = backup.Backup(hexed(row, "backup_a"), hexed(row, "backup_b"))
            backup.open(keys[password], shown, halves)
    for accepted_costs in case["costs_accepted"]:
        backup.Costs(**accepted_costs)
    for refused_costs in case["costs_refused"]:
        with refused("malformed"):
            backup.Costs(**refused_costs)


def test_passwords() -> None:
    made = backup.generate_password()
    assert len(made) == 24 and made != backup.generate_password()
    backup.check_password("twelve chars")
    with refused("malformed"):
        backup.check_password("eleven char")


def test_safety_numbers() -> None:
    for case in read("safety.json")["cases"]:
        one, other = (
            (principal(side, "owner"), [public(keys) for keys in side["keys"]])
            for side in case["sides"]
        )
        assert [safety.half(*one), safety.half(*other)] == [s["half"] for s in case["sides"]]
        assert safety.number(one, other) == safety.number(other, one) == case["number"]


def test_search_tokens() -> None:
    vectors = read("search.json")
    place = vectors["place"]
    conversation, secret = hexed(place, "conversation"), Secret(hexed(place, "secret"))
    key = EpochKey.new(conversation, place["epoch"], secret)
    following = EpochKey.new(conversation, place["epoch"] + 1, secret)
    for case in vectors["cases"]:
        words = search.words(case["text"])
        assert words == case["words"]
        assert search.tokens(key, words) == case["tokens"]
        assert search.tokens(following, words) == case["next_tokens"]
    lane = EpochKey(conversation, place["epoch"], key.sid, secret, lane_agent=conversation)
    assert search.tokens(lane, ["word"]) is None


def test_reply_ids() -> None:
    for case in read("reply_ids.json")["cases"]:
        source = case["source"]
        if "event" in source:
            origin = ids.Origin.event(hexed(source, "event"))
        else:
            origin = ids.Origin.message(
                hexed(source, "conversation"),
                principal(source, "sender"),
                hexed(source, "client_message_id"),
            )
        assert (origin.hash, origin.key) == (hexed(case, "origin"), hexed(case, "key"))
        reply = origin.reply(hexed(case, "agent"), case["name"])
        assert (reply, ids.ulid(reply)) == (hexed(case, "id"), case["ulid"])


def test_key_log() -> None:
    for case in read("key_log.json")["cases"]:
        owner = principal(case, "owner")
        keys = [
            keylog.ListedKey(key["device_id"], public(key), key["schemes"]) for key in case["keys"]
        ]
        hash = keylog.keys_hash(hexed(case, "before"), keys)
        assert hash == hexed(case, "keys_hash")
        assert keylog.log_label(owner) == hexed(case, "label")
        leaf = keylog.leaf(owner, case["list_version"], hash)
        assert leaf == hexed(case, "leaf")
        assert keylog.leaf_hash(leaf) == hexed(case, "leaf_hash")
        assert keylog.view(case["list_version"], hash) == hexed(case, "view")


def test_nobody_outside_names_a_salt_or_a_nonce() -> None:
    # Twice the same salt with the same key gives the contents away.
    makers = [
        function
        for module in (envelope, file, backup, wrap)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if name.startswith("seal")
    ]
    assert len(makers) >= 4
    for maker in makers:
        names = " ".join(inspect.signature(maker).parameters)
        assert "salt" not in names and "nonce" not in names, maker
    assert file.seal(b"x").data != file.seal(b"x").data


def test_secrets_are_not_printed() -> None:
    agent = AgentKey.random()
    keys = agent.keys()
    key = EpochKey.random(bytes(16), 1)
    printed = f"{agent!r} {keys!r} {key!r} {agent} {keys} {key}"
    for hidden in (agent.seed, keys.x25519, keys.ed25519_seed, key.secret):
        assert hidden.expose().hex() not in printed
        assert repr(hidden.expose()) not in printed
    with pytest.raises(E2eeError):
        Principal.from_bytes(b"\3" + bytes(16))

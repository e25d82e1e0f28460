"""A store is a log: each change is added, nothing that was kept is lost, and it stays small."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from blindpipe.stores import log
from blindpipe.stores.pin_store import FilePins, StoredTrust
from blindpipe.core.session import MAX_ROOMS, Handled, Session, SessionOptions
from blindpipe.e2ee import Principal, PrivateKeys
from blindpipe.e2ee.ids import ulid
from blindpipe.e2ee.room import EpochMarks
from blindpipe.e2ee.trust import DirectoryKey, Standing, Trust
from blindpipe.transport.clock import now_ms

ME = Principal.agent(bytes(16))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}


def _id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _marks(*epochs: tuple[str, int]) -> StoredTrust:
    marks = {name: EpochMarks(epoch).store() for name, epoch in epochs}
    return {"pins": {"principals": {}}, "marks": marks}


def _key(seed: PrivateKeys) -> DirectoryKey:
    public = seed.public
    return DirectoryKey("phone", public.public_key, public.signing_public_key, ("bp1",))


async def test_the_last_entry_of_a_name_counts(tmp_path: Path) -> None:
    path, store = tmp_path / "pins", FilePins(tmp_path / "pins")
    assert await store.load() is None
    await store.save(_marks(("a", 1), ("b", 1)))
    await store.save(_marks(("a", 2)))
    assert path.stat().st_mode & 0o777 == 0o600
    loaded = await FilePins(path).load()
    assert loaded is not None and dict(loaded["marks"]) == dict(_marks(("a", 2), ("b", 1))["marks"])


async def test_a_torn_line_is_cut_and_a_damaged_one_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "pins"
    await FilePins(path).save(_marks(("a", 1), ("b", 1), ("c", 1)))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"marks b", b"marks B") + whole[:20])
    store = FilePins(path)
    loaded = await store.load()
    assert loaded is not None and set(loaded["marks"]) == {"a", "c"}
    # The next line does not stand behind half of another.
    await store.save(_marks(("d", 1)))
    loaded = await FilePins(path).load()
    assert loaded is not None and set(loaded["marks"]) == {"a", "c", "d"}


async def test_the_document_of_an_earlier_version_is_converted(tmp_path: Path) -> None:
    path = tmp_path / "pins"
    trust = Trust(ME)
    trust.directory(Principal.user(_id(1)), [_key(PrivateKeys.random())], 1)
    path.write_text(json.dumps({"pins": trust.store(), "marks": _marks(("a", 1))["marks"]}))
    store = FilePins(path)
    for _ in range(2):
        loaded = await store.load()
        assert loaded is not None and set(loaded["marks"]) == {"a"}
        assert Trust(ME, stored=loaded["pins"]).store() == trust.store()
    await store.save(_marks(("b", 1)))
    loaded = await FilePins(path).load()
    assert loaded is not None and set(loaded["marks"]) == {"a", "b"}


async def test_a_log_is_written_anew_before_it_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "FREE_BYTES", 4_096)
    path = tmp_path / "pins"
    store = FilePins(path)
    for epoch in range(1_000):
        await store.save(_marks(("a", epoch), (f"b{epoch % 10}", epoch)))
        assert path.stat().st_size < 8_192
    loaded = await FilePins(path).load()
    assert loaded is not None and len(loaded["marks"]) == 11
    assert loaded["marks"]["a"]["epoch"] == 999


async def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    path, other = tmp_path / "pins", tmp_path / "other"
    other.write_text("somebody else's")
    path.symlink_to(other)
    with pytest.raises(OSError):
        await FilePins(path).save(_marks(("a", 1)))
    path.unlink()
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    beside.symlink_to(other)
    path.write_text(json.dumps(_marks(("a", 1))))
    # The document of an earlier version is written anew beside it.
    assert await FilePins(path).load() is not None
    assert path.stat().st_mode & 0o777 == 0o600
    assert other.read_text() == "somebody else's"


async def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pins"
    await FilePins(path).save(_marks(("a", 1)))
    code = """
import asyncio, resource, signal, sys
from blindpipe.stores.pin_store import FilePins
from blindpipe.e2ee.room import EpochMarks
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
marks = {f"m{n}": EpochMarks(n).store() for n in range(1000)}
try:
    asyncio.run(FilePins(sys.argv[1]).save({"pins": {"principals": {}}, "marks": marks}))
except OSError:
    print("full")
"""
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.stdout == "full\n", done.stderr
    loaded = await FilePins(path).load()
    assert loaded is not None and set(loaded["marks"]) == {"a"}


async def test_a_process_that_is_killed_loses_nothing_that_was_kept(tmp_path: Path) -> None:
    code = """
import asyncio, sys
from blindpipe.stores import log
from blindpipe.stores.pin_store import FilePins
from blindpipe.e2ee.room import EpochMarks
log.FREE_BYTES = 65536
async def main(path, first):
    store = FilePins(path)
    await store.load()
    for n in range(first, first + 100000):
        marks = {f"m{n % 500}": EpochMarks(n, 7).store()}
        await store.save({"pins": {"principals": {}}, "marks": marks})
        print(n, flush=True)
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""
    path, last = tmp_path / "pins", 0
    for _ in range(4):
        arguments = [sys.executable, "-c", code, str(path), str(last + 1)]
        piped = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        with piped as process:
            assert process.stdout
            for line in process.stdout:
                last = int(line)
                if last % 300 == 299:
                    os.kill(process.pid, signal.SIGKILL)
        loaded = await FilePins(path).load()
        assert loaded is not None
        kept = {int(name[1:]): marks["epoch"] for name, marks in loaded["marks"].items()}
        for number in range(max(1, last - 499), last + 1):
            assert kept[number % 500] >= number


def test_pins_that_are_not_used_are_texts_and_stay_as_they_were() -> None:
    trust, keys = Trust(ME), PrivateKeys.random()
    first = Principal.user(_id(1))
    trust.directory(first, [_key(keys)], 1)
    assert trust.verify(first, keys.key_id, 1) == []
    for number in range(2, 5_000):
        trust.directory(Principal.user(_id(number)), [_key(keys)], 1)
    assert len(trust._pins) <= 2_000
    pin = trust.pin(first, keys.key_id)
    assert pin and pin.standing == Standing.VERIFIED and not pin.from_store
    whose, entries = trust.take_changed()
    assert len(whose) == len(entries["principals"]) == 4_999
    assert trust.take_changed()[0] == set()
    trust.directory(first, [_key(keys)], 1)
    assert trust.take_changed()[0] == set(), "nothing is new"
    trust.confirm(first, keys.key_id, 1)
    assert trust.take_changed()[0] == {first}
    again = Trust(ME, stored=entries)
    pin = again.pin(first, keys.key_id)
    assert pin and pin.standing == Standing.VERIFIED and pin.from_store
    assert len(again.store()["principals"]) == 4_999


def test_rooms_are_let_go_and_come_back_as_they_were() -> None:
    options = SessionOptions(
        http=None,  # type: ignore[arg-type]
        me=ME,
        signer=None,
        opening=(),
        device_id=None,
        trust=Trust(ME),
        marks={},
        allows_clear=True,
        on_notice=lambda *_: None,
    )
    session, sender = Session(options), Principal.user(_id(7))
    ids = [ulid(_id(number)) for number in range(3 * MAX_ROOMS)]
    session.resume_handled(Handled(1, id, sender, _id(9)) for id in ids)
    for id in ids:
        session.saw_envelope(id)
    assert len(session._recent) == len(session._entries) == MAX_ROOMS
    held = session._entry(ids[0])
    for id in ids:
        session.saw_envelope(id)
    assert session._entry(ids[0]) is held, "a task that has a room keeps it"
    assert all(session.is_remembered(id, sender, ulid(_id(9))) for id in ids)
    assert not session.is_remembered(ids[0], sender, ulid(_id(8)))
    assert all(session._entry(id).room.was_encrypted for id in ids)
    changed = session.take_changed()
    assert set(changed) == set(ids) and changed[ids[0]].get("encrypted")
    assert session.take_changed() == {}


async def test_handled_messages_of_before_31_days_leave_the_file_in_a_run(tmp_path: Path) -> None:
    pins, now, old = FilePins(tmp_path / "pins"), now_ms(), now_ms() - 32 * 24 * 3_600_000
    path, talk = tmp_path / "pins.handled", ulid(_id(1))

    def batch(at: int) -> list[Handled]:
        return [Handled(at, talk, ME, number.to_bytes(16, "big")) for number in range(2_500)]

    for _ in range(4):
        await pins.add_handled(batch(old))
    line = path.stat().st_size // 10_000
    for _ in range(4):
        await pins.add_handled(batch(now))
    assert path.stat().st_size == 4 * 2_500 * line, "what is too old has left"
    assert len(await FilePins(tmp_path / "pins").load_handled()) == 10_000

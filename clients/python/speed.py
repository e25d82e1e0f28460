"""How many envelopes and wraps are sealed and opened a second: `python clients/python/speed.py`."""

import json
import time
from collections.abc import Callable

from blindpipe.e2ee import EpochKey, Principal, PrivateKeys, envelope, wrap


def report(what: str, run: Callable[[], object]) -> None:
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < 1:
        run()
        count += 1
    each = (time.perf_counter() - start) / count
    print(f"{what:>18}: {count:>7} a second, {each * 1e6:.0f} µs each")


def main() -> None:
    key, keys = EpochKey.random(bytes(16), 1), PrivateKeys.random()
    sender, place = Principal.user(bytes(16)), envelope.Message(bytes(16))
    content = json.dumps({"type": "text", "text": "x" * 200}).encode()
    sealed = envelope.seal(key, sender, keys, place, 1, content)
    report("envelopes sealed", lambda: envelope.seal(key, sender, keys, place, 1, content))
    report(
        "envelopes opened",
        lambda: envelope.open(
            sealed, bytes(16), sender, place, lambda _e, _s: key, lambda _k: keys.public
        ),
    )
    rotation = wrap.Rotation(key, bytes(16), keys, 1)
    wrapped = wrap.seal(rotation, sender, keys.public)
    report("wraps sealed", lambda: wrap.seal(rotation, sender, keys.public))
    report(
        "wraps opened",
        lambda: wrap.open(wrapped, bytes(16), 1, sender, keys, lambda _p, _k: None),
    )


main()

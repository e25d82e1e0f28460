"""The clock, the waits and the jitter of everything that is repeated."""

from __future__ import annotations

import random
import time


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def full_jitter(attempt: int, first_ms: int, max_ms: int) -> float:
    """Anything from 0 to a bound that doubles, in milliseconds."""
    return random.uniform(0, min(max_ms, first_ms * (1 << min(attempt, 30))))

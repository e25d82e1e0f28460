"""Hooks for an operator who watches a client. Nothing here ever carries a secret or a text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal, TypedDict

HookName = Literal[
    "connected",
    "caught_up",
    "disconnected",
    "retry",
    "rate_limited",
    "undecryptable",
    "key_changed",
    "not_rotated",
    "dead_letter",
    "resync",
    "store_failed",
]

Hook = Callable[..., object]


class Hooks(TypedDict, total=False):
    """Functions that are told what happens; each is called with the named arguments."""

    connected: Hook
    """No arguments."""
    caught_up: Hook
    """No arguments."""
    disconnected: Hook
    """`code`, and `holders` where others hold the places."""
    retry: Hook
    """`attempt`, `wait_ms`, `route`."""
    rate_limited: Hook
    """`scope`, `wait_ms`."""
    undecryptable: Hook
    """`reason`, `event_id` (None for a piece of a stream), `conversation_id`."""
    key_changed: Hook
    """`type`, `principal_id`, `key_id`, `conversation_id` (None if it stands in no single one)."""
    not_rotated: Hook
    """`conversation_id`, `reason`: `change` of members or keys, `age`, or `asked` for."""
    dead_letter: Hook
    """`event_id`, `event`, `error`."""
    resync: Hook
    """`oldest`, `head`."""
    store_failed: Hook
    """No arguments. Nothing that the store was to keep is acknowledged until it keeps it."""


class HookCaller:
    """Calls a hook, and keeps its faults away from the client."""

    def __init__(self, hooks: Hooks | None, logger: logging.Logger) -> None:
        self._hooks: dict[str, Hook] = {**(hooks or {})}  # type: ignore[dict-item]
        self._logger = logger

    def call(self, name: HookName, **details: Any) -> None:
        """Tells the hook of this name, if there is one."""
        self._logger.debug("%s %s", name, _without_errors(details))
        hook = self._hooks.get(name)
        if hook is None:
            return
        try:
            hook(**details)
        except Exception:
            self._logger.warning("the hook %s has failed", name)

    def warn(self, text: str) -> None:
        """A line of the log for what no hook is told."""
        self._logger.warning("%s", text)


def _without_errors(details: dict[str, Any]) -> dict[str, Any]:
    """A handler's error may quote a message, so only its class is logged."""
    return {
        name: type(value).__name__ if isinstance(value, BaseException) else value
        for name, value in details.items()
    }

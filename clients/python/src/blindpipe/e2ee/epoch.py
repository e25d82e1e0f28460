"""The secret of an epoch, its name, and the keys of its lanes."""

from __future__ import annotations

from dataclasses import dataclass, field

from ._bytes import hkdf, label, u32
from .keys import Secret

EVERYONE = 0
ADDRESSED = 2


@dataclass(frozen=True, slots=True)
class EpochKey:
    """A secret of an epoch, or the lane of the `addressed` agent `lane_agent`."""

    conversation: bytes
    epoch: int
    sid: bytes
    secret: Secret
    lane_agent: bytes | None = None
    _everyone: Secret | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Every envelope of the epoch needs it.
        everyone = None if self.lane_agent is not None else self._derive(bytes([EVERYONE]))
        object.__setattr__(self, "_everyone", everyone)

    @classmethod
    def new(cls, conversation: bytes, epoch: int, secret: Secret) -> EpochKey:
        """The secret of an epoch (from 1) of a conversation, whose id has 16 bytes."""
        info = label("epoch-id") + conversation + u32(epoch)
        return cls(conversation, epoch, hkdf(secret.expose(), b"", info, 16), secret)

    @classmethod
    def random(cls, conversation: bytes, epoch: int) -> EpochKey:
        """A fresh secret, as `new` takes it."""
        return cls.new(conversation, epoch, Secret.random())

    def everyone(self) -> Secret | None:
        """The key of everyone's lane, for a holder of the epoch's secret."""
        return self._everyone

    def addressed(self, agent: bytes) -> Secret | None:
        """The key of an agent's lane, for a holder of the secret and for that agent."""
        if self.lane_agent is None:
            return self._derive(bytes([ADDRESSED]) + agent)
        return self.secret if self.lane_agent == agent else None

    def search(self) -> Secret | None:
        """The key of search tokens, for a holder of the epoch's secret."""
        if self.lane_agent is not None:
            return None
        info = label("search") + self.conversation + u32(self.epoch)
        return Secret(hkdf(self.secret.expose(), b"", info, 32))

    def _derive(self, lane: bytes) -> Secret:
        info = label("lane") + self.conversation + u32(self.epoch) + lane
        return Secret(hkdf(self.secret.expose(), b"", info, 32))

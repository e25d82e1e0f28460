"""This device's keys: made, backed up, restored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from ..core.types import Device, JsonObject
from ..e2ee import E2eeError, PrivateKeys, PublicKeys, Secret, from_base64, ids, to_base64
from ..e2ee import backup as backups
from ..e2ee.backup import Backup, BackupKey, BackupOwner, Costs
from ..e2ee.keys import Principal, introduce
from ..e2ee.wrap import OpeningKey
from ..stores.device_store import StoredKeys
from ..transport.http import Call
from .account import Account
from .tool_requests import ConsentKeeper

Held = Sequence[tuple[bytes, Secret]]


@dataclass(frozen=True, slots=True)
class DeviceKeys:
    """The keys that this device holds. `earlier` are the X25519 keys of devices before it."""

    signer: PrivateKeys
    earlier: Held = field(default=(), repr=False)
    is_old: bool = False
    """Restored from a backup whose key the directory shows no more; it opens less."""

    @property
    def opening(self) -> list[PrivateKeys | OpeningKey]:
        """The keys that open wraps, the signer's own first."""
        own = self.signer.key_id
        return [self.signer, *(OpeningKey(id, key) for id, key in self.earlier if id != own)]

    def store(self) -> StoredKeys:
        """For a store. Keep it as you keep a password."""
        earlier = [(to_base64(id), to_base64(key.expose())) for id, key in self.earlier]
        return {
            "x25519": to_base64(self.signer.x25519.expose()),
            "ed25519": to_base64(self.signer.ed25519_seed.expose()),
            "earlier": earlier,
        }

    @classmethod
    def stored(cls, keys: StoredKeys) -> DeviceKeys:
        """From a store."""
        exchange, seed = (Secret(from_base64(keys[each])) for each in ("x25519", "ed25519"))
        earlier = [(from_base64(id), Secret(from_base64(key))) for id, key in keys["earlier"]]
        return cls(PrivateKeys(exchange, seed), tuple(earlier))


class Devices:
    """The devices of one person."""

    def __init__(
        self,
        account: Account,
        on_keys: Callable[[DeviceKeys], None],
        keep: Callable[[], Awaitable[None]],
        on_revoked: Callable[[], Awaitable[None]],
        introduced_by: Callable[[str], Awaitable[set[str]]],
        consents: ConsentKeeper,
    ) -> None:
        self._account = account
        self._on_keys = on_keys
        self._keep = keep
        self._on_revoked = on_revoked
        self._introduced_by = introduced_by
        self._consents = consents

    async def list(self) -> Sequence[Device]:
        """All devices of the account."""
        return [device async for device in self._account.http.pages("/users/me/devices")]

    async def online(self) -> Sequence[str]:
        """The ids of the devices that are connected now."""
        return [device["device_id"] for device in await self.list() if device["online"]]

    async def introduced_by(self, device_id: str) -> Sequence[str]:
        """The other devices whose keys `device_id` introduced, directly or by another one.

        After a theft, these may be the thief's. This device is not among them.
        """
        found = await self._introduced_by(device_id)
        return sorted(found - {self._account.device_id})

    async def revoke(self, device_id: str, *, with_introduced: bool = False) -> None:
        """Revokes a device at once, and also those that `introduced_by()` names if asked to.

        The conversations of the last 7 days get fresh secrets now, and all others with the next
        send.
        """
        for other in await self.introduced_by(device_id) if with_introduced else ():
            await self.revoke(other)
        await self._account.http.data(Call("DELETE", f"/users/me/devices/{device_id}"))
        if device_id != self._account.device_id:
            await self._on_revoked()

    async def push_key(self) -> str:
        """The server's key, which a push service wants: P-256 in base64url."""
        shown: JsonObject = await self._account.http.data(Call("GET", "/push/key"))
        key: str = shown["public_key"]
        return key

    async def subscribe(
        self, endpoint: str, *, p256dh: str, auth: str, kind: str = "webpush"
    ) -> JsonObject:
        """Lets the server wake this device through a push service.

        The service learns when something waits, and never what. `kind` is `webpush` or
        `unifiedpush`. The subscription ends with the session, so call this at each start.
        """
        body: JsonObject = {"kind": kind, "endpoint": endpoint, "p256dh": p256dh, "auth": auth}
        path = _push_path(self._account.device_id)
        answer: JsonObject = await self._account.http.data(Call("PUT", path, body=body))
        return answer

    async def subscription(self, device_id: str | None = None) -> JsonObject:
        """The subscription of this device or another one. Its `last_error` is a word or null."""
        path = _push_path(device_id or self._account.device_id)
        answer: JsonObject = await self._account.http.data(Call("GET", path))
        return answer

    async def unsubscribe(self, device_id: str | None = None) -> None:
        """Ends the pushes to this device or another one."""
        path = _push_path(device_id or self._account.device_id)
        await self._account.http.data(Call("DELETE", path))

    async def withdraw(self, agent_id: str, scope: str | None = None) -> None:
        """Takes back what this device remembers of the person's approvals: of a scope, or all.

        Revoking a grant does so, and so does the end of a relation or of the agent's membership.
        """
        await self._consents.withdraw(ids.principal("agent", agent_id), scope)

    def use_keys(self, keys: DeviceKeys) -> None:
        """Goes on with keys that an earlier run has kept. A `store` gives its own back."""
        self._on_keys(keys)

    async def create(
        self, protection_password: str, *, account_password: str | None = None
    ) -> DeviceKeys:
        """Makes keys for this device and backs them up.

        The account's password is refused as protection, since the server sees that one. Without a
        sign-in by it in this run, `account_password` tells it.
        """
        if account_password is None and self._account.is_password(protection_password):
            account_password = protection_password
        backups.check_password(protection_password, account_password)
        return await self._set_up(protection_password, (), None)

    async def restore(self, protection_password: str) -> DeviceKeys:
        """Reads the newest backup that opens; those that the directory still shows go first.

        Restored keys open old messages and introduce this device, which gets keys of its own. The
        key of an old backup introduces nobody: `is_old` says so. Raises `wrong_key` for a wrong
        password.
        """
        shown: Sequence[JsonObject] = await self._account.http.data(Call("GET", "/keys/backup"))
        path = f"/keys/users/{self._account.user_id}/devices"
        directory: JsonObject = await self._account.http.data(Call("GET", path))
        current = [_named(key) for key in directory["devices"] if not key.get("retired_at")]
        fault = E2eeError("no_epoch_key")
        for backup in sorted(shown, key=lambda backup: _named(backup) not in current):
            try:
                is_old = _named(backup) not in current
                return await self._restore_from(backup, protection_password, is_old)
            except E2eeError as error:
                fault = error
        raise fault

    async def _restore_from(self, shown: JsonObject, password: str, is_old: bool) -> DeviceKeys:
        params = shown["argon2_params"]
        costs = Costs(params["m"], params["t"], params["p"])
        salt = from_base64(shown["argon2_salt"])
        key = await asyncio.to_thread(BackupKey.derive, password, salt, costs)
        public = PublicKeys(
            from_base64(shown["public_key"]), from_base64(shown["signing_public_key"])
        )
        owner = BackupOwner(ids.parse(self._account.user_id), shown["device_id"], public)
        sealed = Backup(from_base64(shown["backup_a"]), from_base64(shown["backup_b"]))
        restored = backups.open(key, owner, sealed)
        if shown["device_id"] == self._account.device_id and not is_old:
            return await self._hold(DeviceKeys(restored.keys, tuple(restored.earlier)))
        earlier = ((restored.keys.key_id, restored.keys.x25519), *restored.earlier)
        return await self._set_up(password, earlier, None if is_old else restored.keys, is_old)

    async def _set_up(
        self, password: str, earlier: Held, by: PrivateKeys | None, is_old: bool = False
    ) -> DeviceKeys:
        keys, device_id = PrivateKeys.random(), self._account.device_id
        user = ids.parse(self._account.user_id)
        key = await asyncio.to_thread(BackupKey.random, password)
        most = backups.MAX_BACKUP_KEYS - 1
        sealed = backups.seal(key, user, device_id, keys, earlier[:most])
        costs = key.costs
        body: JsonObject = {
            "backup_a": to_base64(sealed.backup_a),
            "backup_b": to_base64(sealed.backup_b),
            "argon2_salt": to_base64(key.salt),
            "argon2_params": {"m": costs.m, "t": costs.t, "p": costs.p},
            "public_key": to_base64(keys.public.public_key),
            "signing_public_key": to_base64(keys.public.signing_public_key),
            "device_id": device_id,
            "schemes": ["bp1"],
        }
        if by is not None:
            signature = introduce(by, Principal.user(user), device_id, keys.public)
            body["introduction"] = {
                "by_key_id": by.key_id.hex(),
                "signature": to_base64(signature),
            }
        await self._account.http.data(Call("POST", "/keys/backup", body=body))
        return await self._hold(DeviceKeys(keys, tuple(earlier), is_old))

    async def _hold(self, keys: DeviceKeys) -> DeviceKeys:
        self._on_keys(keys)
        await self._keep()
        return keys


def _push_path(device_id: str) -> str:
    return f"/users/me/devices/{device_id}/push"


def _named(key: JsonObject) -> tuple[str | None, str, str]:
    """A device's key, as a backup and the directory name it."""
    return key.get("device_id"), key["public_key"], key["signing_public_key"]

"""A real cluster for tests: the development cluster of the service, not an imitation."""

from __future__ import annotations

import asyncio
import email
import json
import os
import re
import signal
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from email.utils import parseaddr
from pathlib import Path
from typing import Any, Final, TypeVar

from ..agent import AgentOptions
from ..client import Client, ClientOptions
from ..core.types import JsonObject
from ..e2ee import AgentKey
from ..e2ee.ids import new_ulid
from ..transport.http import Call

READY_TIMEOUT_SECONDS: Final = 60.0
MAIL_TIMEOUT_SECONDS: Final = 10.0
PROTECTION_PASSWORD: Final = "correct horse battery staple"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TestUser:
    """A person with a device whose keys are backed up."""

    __test__ = False

    client: Client
    email: str
    password: str = field(repr=False)
    protection_password: str = field(repr=False)


def _nearest(name: str) -> Path | None:
    """The nearest path of this name, from the working folder upward."""
    here = Path.cwd()
    found = (folder / name for folder in (here, *here.parents) if (folder / name).exists())
    return next(found, None)


async def _until(look: Callable[[], _T | None], seconds: float, fault: str) -> _T:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = look()
        if found is not None:
            return found
        await asyncio.sleep(0.02)
    raise TimeoutError(fault)


class DevCluster:
    """A running development cluster."""

    def __init__(self, file: Path, process: subprocess.Popen[bytes] | None) -> None:
        self.file = file
        """The cluster's own description."""
        self._process = process
        self.ca_file: str = self._read()["ca_file"]
        """The certificate of the cluster's own authority."""
        # Mails are many and stay, so each is read once.
        self._read_mails: set[Path] = set()
        self._codes: dict[str, str] = {}
        self.ssl_context = ssl.create_default_context(cafile=self.ca_file)
        """Trusts that authority."""

    def _read(self) -> JsonObject:
        cluster: JsonObject = json.loads(self.file.read_text())
        return cluster

    @property
    def nodes(self) -> Sequence[str]:
        """The addresses of the nodes."""
        return [node["base_url"] for node in self._read()["nodes"]]

    def options(self, node: int = 0, **changes: Any) -> ClientOptions:
        """The settings of a person's client on a node."""
        plain = ClientOptions(self.nodes[node], ssl_context=self.ssl_context)
        return replace(plain, **changes)

    async def user(self, name: str, *, node: int = 0, **changes: Any) -> TestUser:
        """Registers a person; the device's keys are made and backed up."""
        options = self.options(node, **changes)
        address = f"{name}-{new_ulid().lower()}@example.com"
        password = f"account-{new_ulid()}"
        token = "dev-pass"
        await Client.send_code(options, email=address, scene="register", turnstile_token=token)
        client = await Client.register(
            options,
            email=address,
            code=await self.code(address),
            password=password,
            display_name=name,
            turnstile_token=token,
        )
        await client.devices.create(PROTECTION_PASSWORD, account_password=password)
        return TestUser(client, address, password, PROTECTION_PASSWORD)

    async def code(self, address: str) -> str:
        """The newest code that was mailed to an address."""
        folder = Path(self._read()["mail_dir"])

        def look() -> str | None:
            new = {path for path in folder.glob("*.eml") if path not in self._read_mails}
            for path in sorted(new, key=lambda path: path.stat().st_mtime):
                self._read_mail(path)
            return self._codes.get(address)

        return await _until(look, MAIL_TIMEOUT_SECONDS, "no mail with a code came")

    def _read_mail(self, path: Path) -> None:
        mail = email.message_from_bytes(path.read_bytes())
        code = re.search(r"^\s*(\d{8})\s*$", str(mail), re.MULTILINE)
        if code:
            self._codes[parseaddr(str(mail["to"]))[1]] = code[1]
        # A mail without a code may be half written.
        if code or time.time() - path.stat().st_mtime > MAIL_TIMEOUT_SECONDS:
            self._read_mails.add(path)

    async def agent(
        self,
        name: str,
        owner: Client,
        *,
        node: int = -1,
        manifest: Mapping[str, Any] | None = None,
    ) -> AgentOptions:
        """Creates an agent of this person, with a new key."""
        body = {"display_name": name} | ({"manifest": manifest} if manifest else {})
        made = await owner.account.http.data(Call("POST", "/agents", body=body))
        return AgentOptions(
            url=self.nodes[node],
            agent_id=made["agent_id"],
            token=made["token"],
            key=AgentKey.random().to_text(),
            ssl_context=self.ssl_context,
        )

    def kill(self, node: int) -> None:
        """Kills a node as a crash would; the cluster starts it again on the same port."""
        os.kill(self._read()["nodes"][node]["pid"], signal.SIGKILL)

    async def stop(self) -> None:
        """Stops the cluster if `dev_cluster` started it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            await asyncio.to_thread(self._process.wait)


@asynccontextmanager
async def dev_cluster(
    directory: str | os.PathLike[str] | None = None,
    *,
    program: str | os.PathLike[str] | None = None,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[DevCluster]:
    """Finds a running development cluster, or starts one and stops it in the end.

    `directory` is the cluster's folder; by default `BLINDPIPE_DEV`, or the nearest `.dev` upward.
    """
    chosen = directory or os.environ.get("BLINDPIPE_DEV") or _nearest(".dev") or ".dev"
    folder = Path(chosen).resolve()
    file, process = folder / "cluster.json", None
    if not file.exists():
        built = program or _nearest("target/debug/devcluster")
        if built is None:
            raise FileNotFoundError("no development cluster runs, and its program is not built")
        process = subprocess.Popen(
            [built, "--dir", folder, "--no-demo", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
        )

        def look() -> bool | None:
            if process is not None and process.poll() is not None:
                raise RuntimeError("the development cluster has ended")
            return file.exists() or None

        await _until(look, READY_TIMEOUT_SECONDS, "the cluster did not start")
    cluster = DevCluster(file, process)
    try:
        yield cluster
    finally:
        await cluster.stop()

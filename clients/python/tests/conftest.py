"""A cluster and a loop that all tests share; coroutine functions are tests too."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from quickstart import LANGUAGES, follow

from blindpipe.e2ee import backup
from blindpipe.testing import DevCluster, TestUser, dev_cluster

ROOT = Path(__file__).parents[3]
PROGRAM = Path(os.environ.get("BLINDPIPE_DEVCLUSTER", ROOT / "target/debug/devcluster"))
DIRECTORY = Path(os.environ.get("BLINDPIPE_DEV", ROOT / ".dev/clients-python-cluster"))
# Tests share an address and make many connections; what people send stays limited for a test.
LIMITS = {
    "auth_register_ip": "10000/10min",
    "default_ip": "100000/min",
    "default_user": "100000/min",
    "agent_tier_1": "100000/min",
    "ws_connect": "100000/min",
    "ws_connect_ip": "100000/min",
    "keys_lookup": "100000/min",
    "conversation_open": "10000/h",
    "group_agent_instance": "1000/min",
    "user_messages_list": "100000/min",
    "agent_conversation_message_send": "1000/s",
}
NOTICE = f"""
  ****************************************************************************
  *  THE TESTS OF THE PYTHON CLIENT AGAINST A CLUSTER ARE LEFT OUT:
  *  {PROGRAM} is not built.
  *  Build it with `cargo build --workspace` and run them again.
  ****************************************************************************
"""


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """The loop of all tests, since clients keep connections in it."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    # A hang is a failure.
    marker = pyfuncitem.get_closest_marker("limit")
    seconds = marker.args[0] if marker else float(os.environ.get("LIMIT", 60))
    limit = asyncio.wait_for(pyfuncitem.obj(**arguments), seconds)
    pyfuncitem._request.getfixturevalue("runner").run(limit)
    return True


@pytest.fixture(scope="session")
def cluster(runner: asyncio.Runner) -> Iterator[DevCluster]:
    """A real cluster of two nodes."""
    if not PROGRAM.exists():
        pytest.skip("the development cluster is not built")
    if not (DIRECTORY / "cluster.json").exists():
        # A database of an older schema would stop the start.
        shutil.rmtree(DIRECTORY, ignore_errors=True)
    server = os.environ.get("BLINDPIPE_SERVER")
    arguments = ["--packages", str(ROOT / ".dev/packages")]
    overrides = ",".join(f"{name}={limit}" for name, limit in LIMITS.items())
    started = dev_cluster(
        DIRECTORY,
        program=PROGRAM,
        arguments=[*arguments, *(["--server", server] if server else [])],
        environment={"LIMIT_OVERRIDES": overrides},
    )
    yield runner.run(started.__aenter__())
    runner.run(started.__aexit__(None, None, None))


def _user(cluster: DevCluster, runner: asyncio.Runner, name: str, node: int) -> Iterator[TestUser]:
    user = runner.run(cluster.user(name, node=node))
    yield user
    runner.run(user.client.close())


@pytest.fixture(scope="module")
def ada(cluster: DevCluster, runner: asyncio.Runner) -> Iterator[TestUser]:
    """A person on the first node."""
    yield from _user(cluster, runner, "ada", 0)


@pytest.fixture(scope="module")
def bob(cluster: DevCluster, runner: asyncio.Runner) -> Iterator[TestUser]:
    """A person on the second node."""
    yield from _user(cluster, runner, "bob", 1)


@pytest.fixture(scope="session", autouse=True)
def guides(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[tuple[str, str]]]]:
    """The quickstart of each language, followed in threads while the other tests run."""
    chosen = [item for item in request.session.items if "test_every_command" in item.nodeid]
    if not chosen:
        yield {}
        return
    cluster: DevCluster = request.getfixturevalue("cluster")
    with ThreadPoolExecutor(len(LANGUAGES)) as threads:
        folders = {language: tmp_path_factory.mktemp(language) for language in LANGUAGES}
        yield {
            language: threads.submit(follow, language, cluster.ca_file, folder)
            for language, folder in folders.items()
        }


@pytest.fixture(scope="session", autouse=True)
def cheap_backups() -> Iterator[None]:
    """Backups of the tests' people cost the least that clients accept; guides pay in full."""
    def cheap(password: str) -> backup.BackupKey:
        return backup.BackupKey.derive(password, os.urandom(32), backup.Costs(19_456, 2, 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup.BackupKey, "random", cheap)
        yield


LAST = ("test_quickstart", "test_node_death")
"""The guides are followed meanwhile; a node's death would disturb all other tests."""


def pytest_collection_modifyitems(items: list[Any]) -> None:
    items.sort(key=lambda item: [name in item.nodeid for name in reversed(LAST)])


def pytest_terminal_summary() -> None:
    if not PROGRAM.exists():
        sys.stderr.write(NOTICE)


warnings.simplefilter("error", ResourceWarning)

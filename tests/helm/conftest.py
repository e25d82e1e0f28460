import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
from types import SimpleNamespace

import pytest

import sandbox

ROOT = pathlib.Path(__file__).parent.parent.parent
TARGET = (ROOT / os.environ.get("TARGET", "target")).absolute() / "debug"
START_TIMEOUT = 120
# Why pods cannot be started here, if they cannot.
NO_SANDBOX = []


def pytest_configure(config):
    """A network of its own: pods listen on the ports of the chart, whatever else runs on this machine."""
    try:
        sandbox.own_network()
    except OSError as error:
        NO_SANDBOX.append(f"PODS ARE NOT STARTED: this user may make no namespaces here ({error})")


def program(name):
    """A program of Debian's prometheus package, installed or fetched by `devcluster fetch`."""
    fetched = ROOT / ".dev/bin" / name
    found = fetched if fetched.exists() else shutil.which(name)
    if not found:
        pytest.skip(f"{name} is missing: target/debug/devcluster fetch")
    return str(found)


@pytest.fixture(scope="session")
def promtool():
    return program("promtool")


@pytest.fixture(scope="session")
def prometheus():
    return program("prometheus")


@pytest.fixture(scope="session")
def cluster():
    """The dev cluster: two nodes that have played their conversation, a Postgres and a Redis."""
    folder = ROOT / ".dev/chart"
    file, said = folder / "cluster.json", ROOT / ".dev/chart.log"
    # A database that another branch has migrated would not fit.
    subprocess.run([TARGET / "devcluster", "--dir", folder, "clean"], check=True, capture_output=True)
    with said.open("w") as log:
        process = subprocess.Popen(
            [TARGET / "devcluster", "--dir", folder, "--packages", ROOT / ".dev/packages"], stdout=log, stderr=log
        )
    deadline = time.monotonic() + START_TIMEOUT
    # The conversation is played when the hints of the greeting are printed.
    while not (file.exists() and "Ctrl-C stops" in said.read_text()):
        assert process.poll() is None and time.monotonic() < deadline, said.read_text()[-3000:]
        time.sleep(0.1)
    described = json.loads(file.read_text())
    environment = pathlib.Path(f"/proc/{described['nodes'][0]['pid']}/environ").read_bytes().split(b"\0")
    of_node = dict(entry.decode().split("=", 1) for entry in environment if b"=" in entry)
    yield SimpleNamespace(**described, serving_url=of_node["DATABASE_URL"], environment=of_node, folder=folder)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)
    subprocess.run([TARGET / "devcluster", "--dir", folder, "clean"], check=True, capture_output=True)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def until_it_listens(process, port):
    """Waits until a server has opened its port."""
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server has ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the server does not listen")


@pytest.fixture(scope="session")
def owner_sql(cluster):
    """Runs SQL as the owner of the schema."""
    psql = program("psql")

    def run(*arguments, database=None, text=None):
        url = cluster.postgres_url if database is None else cluster.postgres_url.rsplit("/", 1)[0] + "/" + database
        command = [psql, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", url, *arguments]
        return subprocess.run(command, input=text, capture_output=True, text=True)

    return run

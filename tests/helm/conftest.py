import pathlib
import shutil

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent


def program(name):
    """A program of Debian's prometheus package, installed or fetched by `devcluster fetch`."""
    fetched = ROOT / ".dev/bin" / name
    found = fetched if fetched.exists() else shutil.which(name)
    if not found:
        pytest.skip(f"{name} is missing: target/debug/devcluster fetch")
    return found


@pytest.fixture(scope="session")
def promtool():
    return program("promtool")


@pytest.fixture(scope="session")
def prometheus():
    return program("prometheus")

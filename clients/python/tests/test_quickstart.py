"""Every command of docs/quickstart.md, as a reader would type it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
import sysconfig
from pathlib import Path

import pytest
from blindpipe.testing import DevCluster
from live import ROOT

TEXT = (ROOT / "docs/quickstart.md").read_text()
TOOLS = {"Python": "python3", "TypeScript": "npm"}


def _section(text: str, title: str, level: str) -> str:
    parts = re.split(rf"^{level} (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


# What was installed for the tests is taken from there, not from the network again.
OFFLINE = {
    "PYTHONPATH": sysconfig.get_path("purelib"),
    "PIP_NO_INDEX": "1",
    "PIP_NO_BUILD_ISOLATION": "0",
    "npm_config_prefer_offline": "true",
    "npm_config_update_notifier": "false",
}


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`python3` is the interpreter of the tests."""
    programs = tmp_path_factory.mktemp("programs")
    (programs / "python3").symlink_to(
        Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}"
    )
    return {**os.environ, **OFFLINE, "PATH": f"{programs}:{os.environ['PATH']}"}


async def _sh(commands: str, folder: Path, environment: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-ec",
        commands,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, commands
    return output.decode()


async def test_the_service_is_started_by_make(environment: dict[str, str]) -> None:
    (command,) = _blocks(_section(TEXT, "A service", "##"), "sh")
    shown = await _sh(command.replace("make", "make --dry-run CARGO=cargo"), ROOT, environment)
    assert "devcluster --no-demo" in shown


@pytest.mark.limit(240)
@pytest.mark.parametrize("language", TOOLS)
async def test_every_command(
    language: str, cluster: DevCluster, tmp_path: Path, environment: dict[str, str]
) -> None:
    if shutil.which(TOOLS[language]) is None:
        pytest.skip(f"{TOOLS[language]} is not there")
    # The checkout, with the cluster of the tests in the place of the one of `make run`.
    checkout = tmp_path / "blindpipe"
    built = shutil.ignore_patterns("node_modules", "dist", "build", "__pycache__", ".*_cache")
    shutil.copytree(ROOT / "clients", checkout / "clients", ignore=built)
    (checkout / ".dev").symlink_to(Path(cluster.ca_file).parents[1])

    guide = _section(TEXT, language, "##")
    steps = {
        title: _section(guide, title, "###") for title in re.findall(r"^### (.*)$", guide, re.M)
    }
    folder = tmp_path / f"{language.lower()}-agent"
    (install,) = _blocks(steps["Install"], "sh")
    (register,) = _blocks(steps["Register a person and an agent"], "sh")
    await _sh(f"{install}\n{register}", tmp_path, environment)

    write = steps["Write the agent"]
    (code,) = _blocks(write, "python") + _blocks(write, "js")
    name = re.search(r"`(agent\.\w+)`", write)
    assert name
    (folder / name[1]).write_text(code)

    (run,) = _blocks(steps["Run it"], "sh")
    agent = await asyncio.create_subprocess_exec(
        "bash", "-ec", run, cwd=folder, process_group=0, env=environment
    )
    try:
        (ask,) = _blocks(steps["Ask it"], "sh")
        (printed,) = _blocks(_section(TEXT, "Python", "##"), "text")
        assert await _sh(ask, folder, environment) == printed
    finally:
        os.killpg(agent.pid, signal.SIGTERM)
        await agent.wait()

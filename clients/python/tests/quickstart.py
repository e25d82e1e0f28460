"""docs/quickstart.md, followed as a reader would: every command of it, typed in its order."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

from live import ROOT

TEXT = (ROOT / "docs/quickstart.md").read_text()
TOOLS = {"Python": "python3", "TypeScript": "npm"}
LANGUAGES = [language for language, tool in TOOLS.items() if shutil.which(tool)]
MAX_COMMAND_SECONDS = 240

# Packages that were installed for the tests are not fetched from the network again.
OFFLINE = {
    "PYTHONPATH": sysconfig.get_path("purelib"),
    "PIP_NO_INDEX": "1",
    "PIP_NO_BUILD_ISOLATION": "0",
    "npm_config_prefer_offline": "true",
    "npm_config_update_notifier": "false",
}


def section(text: str, title: str, level: str) -> str:
    parts = re.split(rf"^{level} (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def environment(programs: Path) -> dict[str, str]:
    """`python3` is the interpreter of the tests; `programs` is a folder for its link."""
    programs.mkdir()
    version = sys.version_info[1]
    (programs / "python3").symlink_to(Path(sys.base_prefix) / "bin" / f"python3.{version}")
    return {**os.environ, **OFFLINE, "PATH": f"{programs}:{os.environ['PATH']}"}


def sh(commands: str, folder: Path, env: dict[str, str]) -> str:
    """The output of commands, the first of which that fails is the last."""
    done = subprocess.run(
        ["bash", "-ec", commands],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        timeout=MAX_COMMAND_SECONDS,
    )
    assert done.returncode == 0, commands
    return done.stdout


def _until(said: str, commands: str) -> str:
    """Commands that wait until the conversation has these sentences; `commands` name it."""
    found = re.search(r"bp stop (\S+)", commands)
    assert found
    export = commands.splitlines()[0]
    tail = f"timeout 2 bp tail {found[1]} -n 9 || true"
    looks = [f'grep -q "{sentence}" said' for sentence in said.split("; ")]
    return f"{export}\nfor i in $(seq 30); do ({tail}) > said; {' && '.join(looks)} && exit; done; false"


def follow(language: str, ca_file: str, folder: Path) -> tuple[str, str]:
    """Follows a language's guide in `folder`. Answers the last output, and the promised one."""
    env = environment(folder / "programs")
    # The checkout, with the cluster of the tests in the place of the one of `make run`.
    checkout = folder / "blindpipe"
    built = shutil.ignore_patterns("node_modules", "dist", "build", "__pycache__", ".*_cache")
    shutil.copytree(ROOT / "clients", checkout / "clients", ignore=built)
    (checkout / ".dev").symlink_to(Path(ca_file).parents[1])
    (checkout / "target").mkdir()
    (checkout / "target/debug").symlink_to(ROOT / "target/debug")
    env["XDG_CONFIG_HOME"] = str(folder / "config")

    guide = section(TEXT, language, "##")
    steps = {
        title: section(guide, title, "###") for title in re.findall(r"^### (.*)$", guide, re.M)
    }
    here = folder / f"{language.lower()}-agent"
    (install,) = blocks(steps["Install"], "sh")
    (register,) = blocks(steps["Register a person and an agent"], "sh")
    sh(f"{install}\n{register}", folder, env)

    name = re.search(r"`(agent\.\w+)`", steps["Write the agent"])
    assert name
    (run,) = blocks(steps["Run it"], "sh")

    def asked(write: str, ask: str, seen: str = "") -> tuple[str, str]:
        """Writes the agent of one step, runs it, and types the commands of another."""
        (code,) = blocks(steps[write], "python") + blocks(steps[write], "js")
        (here / name[1]).write_text(code)
        agent = subprocess.Popen(["bash", "-ec", run], cwd=here, process_group=0, env=env)
        try:
            (commands,) = blocks(steps[ask], "sh")
            (promised,) = blocks(steps[ask], "text")
            printed = sh(commands, here, env)
            if seen:
                sh(_until(seen, commands), here, env)
            return printed, promised
        finally:
            os.killpg(agent.pid, signal.SIGTERM)
            agent.wait()

    printed, promised = asked("Write the agent", "Ask it")
    both = "Let it ask first, and stop it"
    acted, acted_promised = asked(both, both, "Deploy 1.4.2: approved.; I have stopped.")
    return printed + acted.splitlines(keepends=True)[-1], promised + acted_promised

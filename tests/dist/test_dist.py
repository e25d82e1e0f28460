"""What `make dist` has built, installed into empty places. `make test-dist` runs it."""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import helm_python
import pytest

ROOT = Path(__file__).resolve().parents[2]
DIST = Path(os.environ.get("DIST", ROOT / "dist")).resolve()
VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
PAGE = (ROOT / "docs/install.md").read_text()
# From nothing to an answered question, with everything that is fetched.
MAX_GUIDE_SECONDS = 120
GUIDE = "From nothing to an answered question"
TOOLCHAIN = {"CARGO_HOME": ".cargo", "RUSTUP_HOME": ".rustup"}


def only(pattern):
    (found,) = DIST.glob(pattern)
    return found


def blocks(section, language="sh"):
    text = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))[section]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def run(command, folder, env=None, seconds=300):
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=env, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def bare(home):
    """An environment without anything of this checkout."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "npm_", "NPM_", "SSL_"))}
    home.mkdir()
    return {**kept, "HOME": str(home), "PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin"}


def test_the_checksums_are_those_of_all_files():
    named = dict(reversed(line.split("  ")) for line in (DIST / "SHA256SUMS").read_text().splitlines())
    files = {path.name for path in DIST.iterdir()} - {"SHA256SUMS"}
    assert set(named) == files
    for name, sum in named.items():
        assert hashlib.sha256((DIST / name).read_bytes()).hexdigest() == sum, name


def test_no_program_needs_a_library_or_names_this_machine():
    with tarfile.open(only("*-linux-*.tar.gz")) as archive:
        for program in ("blindpipe", "bp", "devcluster"):
            member = next(it for it in archive.getmembers() if it.name.endswith(f"/{program}"))
            content = archive.extractfile(member).read()
            # An interpreter is what loads libraries.
            assert b"/lib64/ld-linux" not in content[:4096], program
            assert str(ROOT).encode() not in content, program
        assert all(it.uid == it.gid == 0 for it in archive.getmembers())


def test_each_bill_of_materials_names_the_version_and_its_parts():
    bills = sorted(DIST.glob("*.cdx.json"))
    assert len(bills) == 6
    for path in bills:
        bill = json.loads(path.read_text())
        assert bill["bomFormat"] == "CycloneDX"
        assert bill["metadata"]["component"]["version"] == VERSION, path.name
        assert len(bill["components"]) > 3, path.name


def test_the_chart_of_the_archive_renders(tmp_path):
    with tarfile.open(only("blindpipe-chart-*.tgz")) as archive:
        archive.extractall(tmp_path, filter="data")
    helm_python.Chart.load(tmp_path / "blindpipe")
    committed = {path.relative_to(ROOT / "helm") for path in (ROOT / "helm/blindpipe").rglob("*") if path.is_file()}
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()} == committed


@pytest.mark.parametrize("package", ["blindpipe-*-py3-none-any.whl", f"blindpipe-{VERSION}.tar.gz"])
def test_the_python_sdk_installs(package, tmp_path):
    env = bare(tmp_path / "home")
    run(f"python3 -m venv env && env/bin/pip install --quiet {only(package)}", tmp_path, env)
    assert run("env/bin/python -c 'import blindpipe; print(blindpipe.Agent.__name__)'", tmp_path, env) == "Agent\n"


def test_the_typescript_sdk_installs(tmp_path):
    env = bare(tmp_path / "home")
    run(f"npm init --yes && npm install --silent {only('blindpipe-client-*.tgz')}", tmp_path, env)
    script = "import { Agent } from '@blindpipe/client/agent'; console.log(Agent.name)"
    assert run(f'node --input-type=module -e "{script}"', tmp_path, env) == "Agent\n"


def test_the_rust_sdk_builds(tmp_path):
    for crate in DIST.glob("*.crate"):
        with tarfile.open(crate) as archive:
            archive.extractall(tmp_path, filter="data")
        name = crate.name.removesuffix(f"-{VERSION}.crate")
        (tmp_path / f"{name}-{VERSION}").rename(tmp_path / name)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/main.rs").write_text("fn main() { let _ = blindpipe_client::Agent::from_env(); }\n")
    (manifest,) = blocks("In a project of your own", "toml")
    package = '[package]\nname = "own"\nversion = "0.1.0"\nedition = "2024"\n\n'
    (tmp_path / "Cargo.toml").write_text(package + manifest + "\n[workspace]\n")
    # The lock file of the checkout has versions that were tested.
    (tmp_path / "Cargo.lock").write_bytes((ROOT / "Cargo.lock").read_bytes())
    target = ROOT / "target/dist-check"
    run(f"cargo check --quiet --target-dir {target}", tmp_path, {**os.environ}, seconds=900)


@contextlib.contextmanager
def background(command, folder, env):
    process = subprocess.Popen(
        ["bash", "-ec", command], cwd=folder, env=env, process_group=0, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def eventually(look, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.2)
    return found


@contextlib.contextmanager
def cluster_of_release(tmp_path):
    """The release, unpacked in an empty place, and a cluster of its programs; yields the folder and the environment."""
    env = bare(tmp_path / "home")
    here = tmp_path / "release"
    here.mkdir()
    for path in DIST.iterdir():
        (here / path.name).symlink_to(path)
    unpack, start, *_ = blocks(GUIDE)
    env["PATH"] = run(f'{unpack}\necho "$PATH"', here, env).strip()
    with background(start, here, env) as cluster:
        for line in cluster.stdout:
            if b"Try, in another terminal" in line:
                break
        assert cluster.poll() is None
        yield here, env
    run("devcluster clean", here, env)


def test_every_command_of_the_guide(tmp_path):
    _, _, make, talk, decide, verify = blocks(GUIDE)
    began = time.monotonic()
    with cluster_of_release(tmp_path) as (here, env):
        register, init, agent = make.strip().splitlines()
        run(f"{register}\n{init}", here, env)
        with background(agent, here, env):
            send, ask = talk.strip().splitlines()
            assert "Hello" in run(send, here, env)
            with background(ask, here, env) as asking:
                eventually(lambda: "Deploy 1.4?" in run("bp approvals", here, env))
                assert "Deploy 1.4?" in run(decide, here, env)
                assert asking.wait(30) == 0
            run(verify, here, env)
            assert time.monotonic() - began < MAX_GUIDE_SECONDS
        url = json.loads(run("bp context show --json", here, env))["url"]
        findings = run(f"bp app verify {url} --json", here, env).splitlines()
        assert "index.html" in [json.loads(line)["file"] for line in findings]


# A Rust agent is compiled first, with the toolchain of this machine.
@pytest.mark.parametrize(("language", "seconds"), [("typescript", 60), ("rust", 900)])
def test_an_agent_in_another_language_answers(language, seconds, tmp_path):
    with cluster_of_release(tmp_path) as (here, env):
        env |= {name: str(Path.home() / folder) for name, folder in TOOLCHAIN.items()}
        env["PATH"] += f":{env['CARGO_HOME']}/bin"
        run(f"bp register --dev .dev\nbp init {language} hello", here, env)
        with background("./hello/run", here, env):
            assert "Hello" in run(f'bp send hello "Hello" --wait {seconds}', here, env, seconds + 60)


def test_a_person_talks_with_an_agent_in_the_app(tmp_path):
    with cluster_of_release(tmp_path) as (here, env):
        run("bp register --dev .dev\nbp init python hello", here, env)
        (agent,) = [json.loads(line) for line in run("bp agent ls --json", here, env).splitlines()]
        with background("./hello/run", here, env):
            authority = json.loads((here / ".dev/cluster.json").read_text())["ca_file"]
            visit = f"node test/release.mjs {here / '.dev'} {agent['agent_id']}"
            run(visit, ROOT / "clients/web", {**os.environ, "NODE_EXTRA_CA_CERTS": authority})

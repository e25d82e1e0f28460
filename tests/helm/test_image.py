"""The Dockerfile: linted, small, not root, and of one mind with the chart and the sources."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sandbox
from chart import ROOT, case, objects, pods
from conftest import TARGET
from kubelet import dockerfile, entrypoint, image_environment

TEXT = (ROOT / "Dockerfile").read_text()
HADOLINT = Path(sys.executable).with_name("hadolint")
PACKAGE = r'^version = "(.*)"'
VERSIONS = {
    "Cargo.toml": PACKAGE,
    **{f"{member}/Cargo.toml": PACKAGE for member in tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]},
    "clients/rust/client/Cargo.toml": r'(?:^|path = "[./a-z0-9]+", )version = "(.*?)"',
    "clients/python/pyproject.toml": PACKAGE,
    "clients/typescript/package.json": r'^  "version": "(.*)"',
    "clients/web/package.json": r'^  "version": "(.*)"',
    "helm/blindpipe/Chart.yaml": r'^(?:version|appVersion): "?([^"\n]*)"?',
    "Dockerfile": r'image.version="(.*)"',
}
# The libraries of `distroless/cc-debian12` beside the C library.
BASE = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libpthread.so.0"}


def lint(text):
    return subprocess.run([HADOLINT, "--no-color", "-"], input=text, capture_output=True, text=True)


def test_the_linter_has_nothing_to_say():
    ran = lint(TEXT)
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


def test_the_linter_would_find_faults():
    assert "DL3007" in lint("FROM debian:latest\n").stdout


def test_all_that_a_release_has_is_of_one_version():
    text = {path: (ROOT / path).read_text() for path in VERSIONS}
    found = {(path, version) for path, pattern in VERSIONS.items() for version in re.findall(pattern, text[path], re.M)}
    assert {path for path, _ in found} == set(VERSIONS)
    assert len({version for _, version in found}) == 1, found


def test_the_last_stage_is_small_and_not_root():
    stage = dockerfile()
    assert stage["FROM"] == ["${RUNTIME_BASE}"]
    assert "ARG RUNTIME_BASE=gcr.io/distroless/cc-debian12:nonroot@sha256:" in TEXT
    assert "RUN" not in stage and "ADD" not in stage, "it has no shell"
    assert stage["USER"] == ["65532:65532"]
    assert stage["EXPOSE"] == ["8443"], "probes and metrics are for the inside"
    assert stage["VOLUME"] == ["/var/lib/blindpipe/objects"]
    assert all(copy.startswith("--from=build") for copy in stage["COPY"])
    assert stage["HEALTHCHECK"][0].endswith('CMD ["/usr/local/bin/blindpipe", "healthcheck"]')


def test_bases_and_actions_are_named_by_digest():
    bases = re.findall(r"^ARG \w+_BASE=(\S+)$", TEXT, re.M)
    assert len(bases) == 2 and all(re.search(r"@sha256:[0-9a-f]{64}$", base) for base in bases)
    workflows = "".join(file.read_text() for file in (ROOT / ".github/workflows").iterdir())
    actions = re.findall(r"uses: (\S+)", workflows)
    assert actions and all(re.search(r"@[0-9a-f]{40}$", action) for action in actions)


# A proxy that nobody listens at keeps every registry out of reach.
@pytest.mark.parametrize("release, status", [("", 0), ("1", 2)])
def test_advisories_that_cannot_be_looked_up_fail_a_release(release, status):
    nowhere = {name: "http://127.0.0.1:9" for name in ("HTTPS_PROXY", "https_proxy", "npm_config_https_proxy")}
    settings = {**os.environ, **nowhere, "NO_PROXY": "", "no_proxy": "", "RELEASE": release}
    ran = subprocess.run([ROOT / ".ci/advisories"], env=settings, capture_output=True, text=True)
    assert ran.returncode == status, ran.stderr
    for lock in ("Cargo.lock", "clients/rust/e2ee/fuzz/Cargo.lock", "crates/websocket/fuzz/Cargo.lock",
                 "clients/typescript/package-lock.json", "clients/python/requirements-dev.txt",
                 "tests/helm/requirements.txt", "tests/conformance/requirements.txt"):
        assert f"{lock}: " in ran.stdout


def test_labels_tell_what_it_is():
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]+)"', " ".join(dockerfile()["LABEL"])))
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
    assert labels["version"] == cargo["package"]["version"]
    assert labels["licenses"] == cargo["workspace"]["package"]["license"]
    assert labels["title"] and labels["description"]


def test_the_toolchain_is_the_pinned_one():
    channel = tomllib.loads((ROOT / "rust-toolchain.toml").read_text())["toolchain"]["channel"]
    assert f"RUSTUP_TOOLCHAIN={channel} " in TEXT and "--locked" in TEXT
    assert channel.startswith(re.search(r"^ARG BUILD_BASE=rust:([\d.]+)-slim-bookworm@", TEXT, re.M)[1])


def test_the_binary_needs_only_what_the_base_has():
    assert {Path(library).name for library in sandbox.libraries(TARGET / "blindpipe")} <= BASE


@pytest.mark.parametrize("name", ["layer4", "layer7"])
def test_the_chart_runs_it_as_it_is_made(name):
    for owner, pod in pods(objects(case(name))):
        (container,) = pod["containers"]
        assert "command" not in container, "the image's entry point"
        assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == dockerfile()["USER"][0]
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        given = image_environment()
        if "public" in ports:
            assert given["LISTEN_ADDR"].endswith(f":{ports['public']}")
        if "admin" in ports:
            assert given["ADMIN_ADDR"].endswith(f":{ports['admin']}")
    assert entrypoint() == ["/usr/local/bin/blindpipe"]


def test_the_image_has_the_app_that_was_built_before():
    build = " ".join(dockerfile("build")["RUN"])
    assert "cp -r clients/web/dist/. /image/usr/local/share/blindpipe/app" in build
    assert "clients" not in (ROOT / ".dockerignore").read_text()
    steps = subprocess.run(["make", "--dry-run", "image"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert steps.index("--prefix clients/web run build") < steps.index("engine build")


def test_the_build_never_sees_secrets_or_leftovers():
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    assert {".git", ".dev", "target", "**/*.pem", "**/.env*"} <= set(ignored)

"""The Dockerfile: linted, small, not root, and of one mind with the chart and the sources."""

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
# The libraries of `distroless/cc-debian12` beside the C library.
BASE = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libpthread.so.0"}


def lint(text):
    return subprocess.run([HADOLINT, "--no-color", "-"], input=text, capture_output=True, text=True)


def test_the_linter_has_nothing_to_say():
    ran = lint(TEXT)
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


def test_the_linter_would_find_faults():
    assert "DL3007" in lint("FROM debian:latest\n").stdout


def test_the_last_stage_is_small_and_not_root():
    stage = dockerfile()
    assert stage["FROM"] == ["${RUNTIME_BASE}"]
    assert "ARG RUNTIME_BASE=gcr.io/distroless/cc-debian12:nonroot\n" in TEXT
    assert "RUN" not in stage and "ADD" not in stage, "it has no shell"
    assert stage["USER"] == ["65532:65532"]
    assert stage["EXPOSE"] == ["8443"], "probes and metrics are for the inside"
    assert stage["VOLUME"] == ["/var/lib/blindpipe/objects"]
    assert all(copy.startswith("--from=build") for copy in stage["COPY"])
    assert stage["HEALTHCHECK"][0].endswith('CMD ["/usr/local/bin/blindpipe", "healthcheck"]')


def test_labels_tell_what_it_is():
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]+)"', " ".join(dockerfile()["LABEL"])))
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
    assert labels["version"] == cargo["package"]["version"]
    assert labels["licenses"] == cargo["workspace"]["package"]["license"]
    assert labels["title"] and labels["description"]


def test_the_toolchain_is_the_pinned_one():
    channel = tomllib.loads((ROOT / "rust-toolchain.toml").read_text())["toolchain"]["channel"]
    assert f"RUSTUP_TOOLCHAIN={channel} " in TEXT and "--locked" in TEXT
    assert channel.startswith(re.search(r"^ARG BUILD_BASE=rust:([\d.]+)-slim-bookworm$", TEXT, re.M)[1])


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


def test_the_build_never_sees_secrets_or_leftovers():
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    assert {".git", ".dev", "target", "**/*.pem", "**/.env*"} <= set(ignored)

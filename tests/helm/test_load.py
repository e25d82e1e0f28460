"""The chart's load test, started as its pod would be, against the dev cluster as a release elsewhere."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

import sandbox
from chart import ROOT, case, merged, objects
from conftest import NO_SANDBOX, TARGET
from kubelet import Pod, entrypoint

pytestmark = pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX[0] if NO_SANDBOX else "")
PROGRAMS = [TARGET / "loadtest", TARGET.with_name("release") / "loadtest"]
STAGE = "loadtest"


@pytest.fixture(scope="module")
def program():
    found = next((path for path in PROGRAMS if path.exists()), None)
    if not found:
        pytest.skip("THE LOAD TEST OF THE CHART IS NOT STARTED: cargo build --bin loadtest")
    return found


def test_the_load_test_measures_a_release_with_ready_accounts(program, cluster, tmp_path):
    accounts = tmp_path / "accounts.json"
    made = subprocess.run(
        [program, "--write-accounts", accounts, "--pairs", "2", "--cluster", cluster.folder / "cluster.json"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr

    values = merged(case("everything"), {
        "publicUrl": cluster.nodes[0]["base_url"],
        "loadTest": {"ratePerSecond": 10, "seconds": 2, "rounds": 1},
    })  # fmt: skip
    spec = objects(values)["Job", "chat-load-test"]["spec"]["template"]["spec"]
    stores = {
        "secrets": {"load-accounts": {"accounts.json": accounts.read_text()}},
        "configs": {"authorities": {"ca.crt": Path(cluster.ca_file).read_text()}},
    }
    # The user of the pod must reach it.
    folder = Path(tempfile.mkdtemp(prefix="blindpipe-load-"))
    folder.chmod(0o755)
    try:
        root = sandbox.bare_root(folder / "root", program, entrypoint(STAGE)[0])
        job = Pod(root, "chat-load-test", spec, stores, STAGE).start()
        code = job.wait(120)
        assert code == 0, job.log.read_text()
        assert "0 duplicated, 0 reordered" in job.log.read_text()
    finally:
        shutil.rmtree(folder, ignore_errors=True)

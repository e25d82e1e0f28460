"""The chart's load test, started as its pods would be, against the dev cluster as a release elsewhere."""

import shutil
import tempfile
from pathlib import Path

import pytest

import sandbox
from chart import case, merged, objects
from conftest import NO_SANDBOX, TARGET
from kubelet import Pod, entrypoint

pytestmark = pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX[0] if NO_SANDBOX else "")
PROGRAMS = [TARGET / "loadtest", TARGET.with_name("release") / "loadtest"]
STAGE = "loadtest"
# Of the shell that has started the cluster.
NOT_SETTINGS = {"PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "_", "SSL_CERT_FILE"}


class Placeholders(dict):
    """The values of a secret, which the settings of the dev cluster replace."""

    def __missing__(self, key):
        return "placeholder"


@pytest.fixture(scope="module")
def program():
    found = next((path for path in PROGRAMS if path.exists()), None)
    if not found:
        pytest.skip("THE LOAD TEST OF THE CHART IS NOT STARTED: cargo build --bin loadtest")
    return found


def values_of(cluster):
    """The case of the tests, with the settings of the dev cluster's nodes."""
    settings = {**cluster.environment, "MIGRATE_DATABASE_URL": cluster.postgres_url}
    own = [{"name": name, "value": value} for name, value in settings.items() if name not in NOT_SETTINGS]
    return merged(case("everything"), {
        "publicUrl": cluster.nodes[0]["base_url"],
        "extraEnv": own,
        # These would need what the dev cluster does not have.
        "objectStore": {"direct": False},
        "tracing": {"endpoint": "", "hasHeaders": False},
        "loadTest": {
            "accounts": 2, "scenarios": ["hop", "send", "sockets", "storm", "fanout"], "ratePerSecond": 10, "seconds": 2, "rounds": 1,
        },
    })  # fmt: skip


def containers_in_turn(spec):
    """The containers of a pod as pods of one container each, in the order in which the kubelet starts them."""
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        yield container["name"], {**spec, "containers": [container]}


def test_the_load_test_makes_its_accounts_and_leaves_none(program, cluster, owner_sql):
    found = objects(values_of(cluster))
    specs = [found["Job", name]["spec"]["template"]["spec"] for name in ("chat-load-test", "chat-load-test-end")]
    secrets = {name: Placeholders() for spec in specs for name in secrets_of(spec)}
    stores = {"secrets": secrets, "configs": {"authorities": {"ca.crt": Path(cluster.ca_file).read_text()}}}
    # The user of the pod must reach it.
    folder = Path(tempfile.mkdtemp(prefix="blindpipe-load-"))
    folder.chmod(0o755)

    def accounts():
        counted = owner_sql("--tuples-only", "--command", "select count(*) from user_account where email like '%loadtest.invalid'")
        return int(counted.stdout)

    try:
        load = sandbox.bare_root(folder / "load", program, entrypoint(STAGE)[0])
        server = sandbox.bare_root(folder / "server", TARGET / "blindpipe", entrypoint()[0])
        said = {}
        # The second run finds the accounts of the first.
        for spec in [specs[0], specs[0], specs[1]]:
            for name, alone in containers_in_turn(spec):
                root, stage = (load, STAGE) if name == "loadtest" else (server, None)
                pod = Pod(root, "chat-load-test", alone, stores, stage).start()
                code = pod.wait(180)
                said[name] = pod.log.read_text()
                assert code == 0, said[name]
                if name == "make-accounts":
                    assert accounts() == 2
            shutil.rmtree(folder / "volumes")
        assert said["loadtest"].count("0 failed, 0 lost, 0 duplicated, 0 reordered") == 10
        assert accounts() == 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def secrets_of(spec):
    """The secrets that variables of a pod name."""
    for _, alone in containers_in_turn(spec):
        for entry in alone["containers"][0].get("env", []):
            reference = entry.get("valueFrom", {}).get("secretKeyRef")
            if reference:
                yield reference["name"]

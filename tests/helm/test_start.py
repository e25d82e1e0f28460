"""The server starts with exactly what the rendered pods give it: environment, arguments, user, files and probes."""

import base64
import os
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.parse
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from types import SimpleNamespace

import pytest

import sandbox
from chart import CHART, ROOT, case, merged, objects, pods
from conftest import NO_SANDBOX, TARGET
from kubelet import Pod, dockerfile, entrypoint

pytestmark = pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX[0] if NO_SANDBOX else "")


def key():
    return base64.b64encode(secrets.token_bytes(32)).decode()


# A secret with the keys of values that make URLs of parts.
PARTS = "parts"
# The stand-in for the build of the web app.
APP = "<!doctype html>the app"


def secrets_of_the_readme():
    """{name: keys} of the secrets that an operator makes."""
    readme = (CHART / "README.md").read_text().replace("\\\n", " ")
    made = re.findall(r"create secret generic (\S+) (.*)", readme)
    found = {name: re.findall(r"--from-literal=(\w+)=", rest) for name, rest in made}
    assert sorted(found) == ["blindpipe", "blindpipe-eraser", "blindpipe-owner"]
    return found


@pytest.fixture(scope="module")
def namespace(cluster, owner_sql):
    """Secrets that lead to real stores on this machine, a database of its own, and a root for pods."""
    database = f"chart_{secrets.token_hex(4)}"
    assert owner_sql("--command", f"create database {database}").returncode == 0
    serving, owner, eraser = (
        urllib.parse.urlsplit(url)._replace(path=f"/{database}")
        for url in (cluster.serving_url, cluster.postgres_url, cluster.erase_url)
    )
    redis = urllib.parse.urlsplit(cluster.redis_url)
    folder = Path(tempfile.mkdtemp(prefix="blindpipe-chart-"))
    folder.chmod(0o755)
    root = sandbox.bare_root(folder / "root", TARGET / "blindpipe", entrypoint()[0])
    (app,) = (words.split()[-1] for words in dockerfile()["COPY"] if "/app " in words)
    (root / app.lstrip("/")).mkdir(parents=True)
    (root / app.lstrip("/") / "index.html").write_text(APP)
    tls = cluster.folder / "tls"
    certificate, private = next((tls / name, tls / other) for name, other in certificate_files(tls))
    known = {
        "DATABASE_URL": serving.geturl(),
        "DATABASE_PASSWORD": serving.password,
        "REDIS_URL": cluster.redis_url,
        "REDIS_PASSWORD": redis.password,
        "REDIS_SENTINEL_PASSWORD": redis.password,
        "MAIL_URL": "smtps://user:secret@127.0.0.1",
        "TURNSTILE_SECRET": "0x4AAAAAAA",
        "ACCESS_TOKEN_KEYS": f"k1:{key()}",
        "SERVER_SECRET": key(),
        "MIGRATE_DATABASE_URL": owner.geturl(),
        "MIGRATE_DATABASE_PASSWORD": owner.password,
        "ERASE_DATABASE_URL": eraser.geturl(),
        "ERASE_DATABASE_PASSWORD": eraser.password,
    }
    stores = {
        "secrets": {
            **{name: {key: known[key] for key in keys} for name, keys in secrets_of_the_readme().items()},
            PARTS: {name: value for name, value in known.items() if not name.endswith("DATABASE_URL")},
            "chat-tls": {"tls.crt": certificate.read_text(), "tls.key": private.read_text()},
        },
        "configs": {"authorities": {"ca.crt": Path(cluster.ca_file).read_text()}},
        "claims": {"chat-objects": folder / "objects"},
    }
    yield SimpleNamespace(
        root=root, stores=stores, database=database, postgres=serving, redis=redis, ca=cluster.ca_file, folder=folder
    )
    shutil.rmtree(folder, ignore_errors=True)
    owner_sql("--command", f"drop database {database} with (force)")


def certificate_files(tls):
    names = {path.name for path in tls.iterdir()}
    return [(name, other) for name, other in (("cert.pem", "key.pem"), ("server.pem", "server.key")) if {name, other} <= names]


@pytest.fixture
def start(namespace):
    """Starts a pod of the release `chat` with values, and ends it after the test."""
    begun = []

    def start(values, owner, arguments=None):
        spec = dict(pods(objects(values)))[owner]
        pod = Pod(namespace.root, f"{owner}-{len(begun)}", spec, namespace.stores)
        begun.append(pod)
        return pod.start(arguments)

    yield start
    for pod in begun:
        pod.kill()


def values_of(name, namespace, **changes):
    """A case of the tests with the addresses of this machine's stores."""
    # The dev cluster has keys of its own in the same Redis.
    quick = {"drain": {"lagSeconds": 1}, "settings": {"REDIS_PREFIX": namespace.database}}
    return merged(merged(case(name), quick), changes)


def by_parts(namespace):
    return {
        "secrets": {"nodes": PARTS, "owner": PARTS, "eraser": PARTS},
        "database": {
            "host": namespace.postgres.hostname,
            "port": namespace.postgres.port,
            "name": namespace.database,
            "user": namespace.postgres.username,
            "sslmode": "disable",
            "pgbouncer": {"enabled": False},
        }
    }


def get(path, headers=None, tls=None, source="127.0.0.1"):
    """(status, headers) of the public port, from an address of the loopback."""
    options = {"timeout": 10, "source_address": (source, 0)}
    if tls:
        connection = HTTPSConnection("127.0.0.1", 8443, context=ssl.create_default_context(cafile=tls), **options)
    else:
        connection = HTTPConnection("127.0.0.1", 8443, **options)
    connection.request("GET", path, headers=headers or {})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, answer.headers


def remaining(headers):
    """The rest of the budget that an answer states."""
    return int(headers["RateLimit"].split("r=")[1].split(";")[0])


def until_backplane(seconds=15):
    """Waits until hints flow through Redis, so the address, the password and the kind of Redis are right."""
    deadline = time.monotonic() + seconds
    while True:
        connection = HTTPConnection("127.0.0.1", 9090, timeout=5)
        connection.request("GET", "/health/ready")
        body = connection.getresponse().read()
        connection.close()
        if b'"backplane":true' in body:
            return
        assert time.monotonic() < deadline, body
        time.sleep(0.1)


@pytest.fixture(scope="module", autouse=True)
def migrated(namespace):
    """The hook's job, with URLs; the pods of other tests need its schema."""
    spec = next(document for (kind, _), document in objects(case("layer7")).items() if kind == "Job")
    job = Pod(namespace.root, "chat-migrate", spec["spec"]["template"]["spec"], namespace.stores).start()
    assert job.wait(60) == 0, job.log.read_text()
    assert "the schema is up to date" in job.log.read_text()


def test_a_migration_by_parts_finds_nothing_left_to_do(start, namespace):
    job = start(values_of("layer4", namespace, **by_parts(namespace)), "chat-migrate")
    assert job.wait(60) == 0, job.log.read_text()
    assert '"applied":0' in job.log.read_text()


def test_the_daily_job_erases_as_its_own_role(start, namespace):
    for name, changes in (("layer4", by_parts(namespace)), ("layer7", {})):
        job = start(values_of(name, namespace, **changes), "chat-erase")
        assert job.wait(60) == 0, job.log.read_text()
        assert '"accounts":0' in job.log.read_text()


def test_behind_a_layer_7_balancer(start, namespace):
    values = values_of("layer7", namespace, trustedProxies=["127.0.0.1/32"])
    pod = start(values, "chat").until_ready()
    assert pod.identity() == ("65532", "65532", ["65532"], 0, "1") or os.geteuid() != 0
    until_backplane()

    # A proxy must say that the client came over TLS.
    assert get("/version")[0] == 403
    forwarded = {"X-Forwarded-Proto": "https"}
    assert get("/version", forwarded)[0] == 200
    assert get("/version", {**forwarded, "X-Forwarded-Proto": "http"})[0] == 403
    # A stranger who claims to be the proxy is none.
    assert get("/version", forwarded, source="127.0.0.9")[0] == 403

    # The limits count clients, not the proxy.
    def seen(client):
        return remaining(get("/events/types", {**forwarded, "X-Forwarded-For": client})[1])

    first, second, other = seen("203.0.113.1"), seen("203.0.113.1"), seen("203.0.113.2")
    assert second == first - 1 and other == first
    assert seen("198.51.100.9, 203.0.113.1") == second - 1, "the address that the proxy has appended counts"

    # The release tests itself.
    tester = start(values, "chat-test")
    assert tester.wait(30) == 0, tester.log.read_text()

    # The drain: not ready at once, alive to the end, gone within the grace period.
    pod.process.terminate()
    deadline = time.monotonic() + 5
    while pod.probe("readinessProbe"):
        assert time.monotonic() < deadline
    assert pod.probe("livenessProbe")
    assert pod.wait(pod.spec["terminationGracePeriodSeconds"]) == 0
    assert '"drained"' in pod.log.read_text()
    tester = start(values, "chat-test")
    assert tester.wait(30) == 1, "no node answers"


def test_behind_a_layer_4_balancer(start, namespace):
    values = values_of(
        "layer4",
        namespace,
        **by_parts(namespace),
        redis={"mode": "single", "hosts": [namespace.redis.netloc.rsplit("@")[-1]], "tls": False, "user": ""},
    )
    pod = start(values, "chat").until_ready()
    until_backplane()
    # TLS ends here, and nobody is asked about forwarded addresses.
    lie = {"X-Forwarded-For": "203.0.113.1"}
    status, first = get("/events/types", lie, tls=namespace.ca)
    assert status == 200 and first["Strict-Transport-Security"]
    _, second = get("/events/types", {"X-Forwarded-For": "203.0.113.2"}, tls=namespace.ca)
    _, other = get("/events/types", tls=namespace.ca, source="127.0.0.2")
    assert remaining(second) == remaining(first) - 1, "the address of the connection counts"
    assert remaining(other) == remaining(first), "and each has a budget"
    with pytest.raises((OSError, HTTPException)):
        get("/events/types")
    # The shared volume is the group's, and the key is nobody else's.
    if os.geteuid() == 0:
        assert (namespace.stores["claims"]["chat-objects"].stat().st_mode & 0o7777) == 0o2775
        for path in (namespace.folder / "volumes").glob("*-tls/tls.key"):
            assert (path.stat().st_mode & 0o777, path.stat().st_uid, path.stat().st_gid) == (0o440, 0, 65532)
    assert pod.end() == 0

    worker = start(values, "chat-worker").until_ready()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", 8443), timeout=1):
        pass
    assert worker.end() == 0


def test_with_own_authorities_and_redis_cluster(start, namespace, redis_server):
    port = redis_server("--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")
    redis_server.ask(port, "cluster", "addslotsrange", "0", "16383")
    values = values_of(
        "everything",
        namespace,
        **by_parts(namespace),
        redis={"mode": "cluster", "hosts": [f"127.0.0.1:{port}"], "tls": False},
    )
    held = namespace.stores["secrets"][PARTS]
    held["OBJECT_STORE_SECRET"] = key()
    held["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization=Bearer%20{secrets.token_hex()}"
    pod = start(values, "chat").until_ready()
    until_backplane()
    assert pod.end() == 0


def test_with_sentinels(start, namespace, redis_server):
    password = namespace.redis.password
    config = namespace.folder / "sentinel.conf"
    config.write_text(
        f"requirepass {password}\n"
        f"sentinel monitor mymaster {namespace.redis.hostname} {namespace.redis.port} 1\n"
        f"sentinel auth-pass mymaster {password}\n"
    )
    port = redis_server(str(config), "--sentinel", password=False)
    values = values_of(
        "layer4",
        namespace,
        **by_parts(namespace),
        redis={"mode": "sentinel", "hosts": [f"127.0.0.1:{port}"], "tls": False, "user": ""},
    )
    pod = start(values, "chat").until_ready()
    until_backplane()
    assert pod.end() == 0


def test_a_pod_with_faults_names_them_all_and_ends(start, namespace):
    values = values_of("layer7", namespace, settings={"MAX_SOCKETS": 0, "LIMIT_OVERRIDES": "nothing"})
    pod = start(values, "chat")
    assert pod.wait(30) == 1
    said = pod.log.read_text()
    assert "2 fault(s)" in said and "MAX_SOCKETS" in said and "LIMIT_OVERRIDES" in said


def test_the_app_of_the_image_is_served_where_it_is_wanted(start, namespace):
    values = values_of("layer7", namespace, trustedProxies=["127.0.0.1/32"], app={"enabled": True})
    pod = start(values, "chat").until_ready()
    status, headers = get("/app", {"X-Forwarded-Proto": "https"})
    assert status == 200 and headers["Content-Length"] == str(len(APP))
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert pod.end() == 0


def test_the_image_starts_and_checks_its_own_health(start, namespace):
    """The command of HEALTHCHECK, in the same root, with what the image sets."""
    values = values_of("layer7", namespace, trustedProxies=["127.0.0.1/32"])
    pod = start(values, "chat").until_ready()
    assert get("/app", {"X-Forwarded-Proto": "https"})[0] == 404, "the app is off by default"
    assert start(values, "chat", ["healthcheck"]).wait(30) == 0
    pod.kill()
    assert start(values, "chat", ["healthcheck"]).wait(30) == 1


@pytest.fixture
def redis_server(cluster, namespace):
    """Starts a Redis with arguments; returns its port."""
    folder = ROOT / ".dev/packages/redis"
    program, environment = shutil.which("redis-server"), dict(os.environ)
    if not program:
        program = str(folder / "usr/bin/redis-server")
        environment["LD_LIBRARY_PATH"] = ":".join(str(path) for path in (folder / "usr/lib").glob("*-linux-*"))
    begun = []
    password = namespace.redis.password

    def ask(port, *words):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
            for command in (("auth", password), words):
                link.sendall(f"*{len(command)}\r\n".encode())
                for word in command:
                    link.sendall(f"${len(word)}\r\n{word}\r\n".encode())
                answer = link.recv(4096)
                assert answer.startswith(b"+"), answer

    def start(*arguments, **options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # A cluster's bus has the port above by 10,000.
        port = port % 20000 + 20000
        secret = ["--requirepass", password] if options.get("password", True) else []
        command = [program, *arguments, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(namespace.folder)]
        log = (namespace.folder / f"redis-{port}.log").open("w")
        begun.append(subprocess.Popen([*command, *secret, "--save", ""], env=environment, stdout=log, stderr=log))
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return port
            except OSError:
                assert begun[-1].poll() is None and time.monotonic() < deadline, Path(log.name).read_text()
                time.sleep(0.02)

    start.ask = ask
    yield start
    for process in begun:
        process.kill()
        process.wait()

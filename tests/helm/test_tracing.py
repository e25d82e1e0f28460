"""Traces at a collector that others have written: Rotel, as a program."""

import importlib.util
import ssl
import subprocess
import time
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from conftest import TARGET, free_port, until_it_listens

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
EXPORT_TIMEOUT = 20


@pytest.fixture
def collector(tmp_path):
    """The collector, which prints what it takes: its port and its output."""
    package = importlib.util.find_spec("rotel").submodule_search_locations[0]
    http, grpc, said = free_port(), free_port(), tmp_path / "collector.log"
    with said.open("w") as log:
        process = subprocess.Popen(
            [Path(package) / "rotel-agent", "start", "--exporter", "blackhole"]
            + ["--otlp-http-endpoint", f"127.0.0.1:{http}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}"]
            + ["--debug-log", "traces", "--debug-log-verbosity", "detailed"],
            stdout=log,
            stderr=log,
        )
    until_it_listens(process, http)
    yield http, said
    process.terminate()
    process.wait(timeout=30)


def test_a_real_collector_takes_the_spans_of_a_node(cluster, collector):
    port, said = collector
    public, admin = free_port(), free_port()
    own = {
        "LISTEN_ADDR": f"127.0.0.1:{public}",
        "ADMIN_ADDR": f"127.0.0.1:{admin}",
        "NODE_NAME": "traced",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "TRACE_TRUST_CALLERS": "true",
        "TRACE_SAMPLE_RATIO": "0",
    }
    node = subprocess.Popen([TARGET / "blindpipe", "serve"], env={**cluster.environment, **own}, stderr=subprocess.DEVNULL)
    try:
        until_it_listens(node, public)
        context = ssl.create_default_context(cafile=cluster.ca_file)
        client = HTTPSConnection("localhost", public, context=context)
        client.request("GET", "/version", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        assert client.getresponse().status == 200
        deadline = time.monotonic() + EXPORT_TIMEOUT
        while TRACE not in said.read_text():
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.1)
    finally:
        node.terminate()
        node.wait(timeout=40)
    text = said.read_text()
    for line in (
        "service.name: Str(blindpipe)",
        "service.instance.id: Str(traced)",
        f"Parent ID      : {PARENT}",
        "Name           : GET /version",
        "Kind           : SPAN_KIND_SERVER",
        "http.response.status_code: Int(200)",
    ):
        assert line in text, f"{line}: {text}"

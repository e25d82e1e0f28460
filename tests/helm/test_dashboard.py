"""Every query of the dashboard runs in a real Prometheus that scrapes the dev cluster, and so do the alert rules."""

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
import yaml

from chart import CHART, case, objects
from test_alerts import ALERTS, RULES, known_series, series_in, series_table

DASHBOARD = json.loads((CHART / "files/dashboard.json").read_text())
SCRAPE = "300ms"


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries():
    """(panel, query) with Grafana's variables as Grafana would fill them in."""
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"].replace("$namespace", "messaging").replace("$__rate_interval", "5s")
            assert "$" not in query, query
            yield panel["title"], query


@pytest.fixture(scope="module")
def prometheus_url(prometheus, promtool, cluster, tmp_path_factory):
    """A Prometheus with the chart's rules that has scraped both nodes a few times."""
    folder = tmp_path_factory.mktemp("prometheus")
    rules = folder / "alerts.yaml"
    rules.write_text(RULES.read_text())
    nodes = [
        {"targets": [node["admin_url"].removeprefix("http://")], "labels": {"namespace": "messaging", "pod": f"chat-{n}"}}
        for n, node in enumerate(cluster.nodes)
    ]
    config = {
        "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "blindpipe", "static_configs": nodes}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = "127.0.0.1:19290"
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address={address}", "--log.level=warn"],
        stdout=log, stderr=log,
    )  # fmt: skip
    url = f"http://{address}"
    deadline = time.monotonic() + 60
    while True:
        try:
            # It answers no query before it has read its rules and its log.
            urllib.request.urlopen(f"{url}/-/ready", timeout=10).close()
            # Rates need some scrapes.
            if len(ask(url, 'count_over_time(up{job="blindpipe"}[1m]) > 6')) == len(nodes):
                break
        except OSError:
            pass
        assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
        time.sleep(0.2)
    yield url
    process.terminate()
    process.wait(timeout=20)


def ask(url, query):
    """The result of a query; a fault in it fails the test with Prometheus's words."""
    parameters = urllib.parse.urlencode({"query": query})
    try:
        answer = json.load(urllib.request.urlopen(f"{url}/api/v1/query?{parameters}", timeout=10))
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{query}: {error.read().decode()}") from None
    return answer["data"]["result"]


def test_every_query_runs_and_shows_what_the_cluster_did(prometheus_url, cluster):
    scraped = set()
    for node in cluster.nodes:
        text = urllib.request.urlopen(node["admin_url"] + "/metrics", timeout=5).read().decode()
        scraped |= set(re.findall(r"^(\w+)[ {]", text, re.M))
    shown, empty = [], []
    for panel, query in queries():
        result = ask(prometheus_url, query)
        # A filter (outcome="failed") may leave nothing of a series that exists.
        narrow = re.search(r'(status|outcome)=~?"', query)
        if series_in(query) - {"up"} <= scraped and not narrow:
            assert result, f"{panel}: {query} shows nothing"
        (shown if result else empty).append(panel)
    # Requests, sends, sockets, tokens, hashes: the played conversation has them all.
    assert len(shown) > len(empty), (shown, empty)


def test_every_series_is_one_of_the_server(promtool):
    known = known_series()
    for panel, query in queries():
        used = series_in(query)
        assert used and used <= known, (panel, used - known)
        assert 'job="blindpipe",namespace="messaging"' in query, panel


def panel_of(name, kind, text):
    """A plain panel below all others, for a series that has none."""
    where = 'job="blindpipe",namespace="$namespace"'
    rate = f"rate({name}{'' if kind == 'Counter' else '_bucket'}{{{where}}}[$__rate_interval])"
    query, unit = {
        "Counter": (f"sum({rate})", "cps"),
        "Gauge": (f"sum by (pod) ({name}{{{where}}})", "short"),
        "Seconds": (f"histogram_quantile(0.99, sum by (le) ({rate}))", "s"),
        "Size": (f"histogram_quantile(0.99, sum by (le) ({rate}))", "short"),
    }[kind]
    panel = json.loads(json.dumps(next(panel for panel in panels() if panel["type"] == "timeseries")))
    places = [other["gridPos"] for other in DASHBOARD["panels"]]
    panel["id"] = max(other["id"] for other in DASHBOARD["panels"]) + 1
    panel["gridPos"] = {"x": 0, "y": max(place["y"] + place["h"] for place in places), "w": 24, "h": 7}
    panel["title"], panel["description"] = name, text
    panel["targets"] = [{**panel["targets"][0], "expr": query, "legendFormat": "__auto"}]
    panel["fieldConfig"]["defaults"]["unit"] = unit
    return panel


def test_every_series_of_the_server_is_shown():
    if os.environ.get("UPDATE_GOLDEN"):
        text = json.dumps(DASHBOARD)
        for row in series_table():
            if not re.search(rf"\b{row[0]}(_bucket|_sum|_count)?\b", text):
                DASHBOARD["panels"].append(panel_of(*row))
        (CHART / "files/dashboard.json").write_text(json.dumps(DASHBOARD, indent=1) + "\n")
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for _, query in queries() for name in series_in(query)}
    missing = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known_series()} - shown
    assert missing == set(), "UPDATE_GOLDEN=1 make helm adds a plain panel for each; move it where it belongs"


def test_the_alert_rules_are_loaded_and_healthy(prometheus_url):
    deadline = time.monotonic() + 15
    while True:
        groups = json.load(urllib.request.urlopen(f"{prometheus_url}/api/v1/rules", timeout=10))["data"]["groups"]
        rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
        if all(rule["health"] != "unknown" for rule in rules.values()) or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert sorted(rules) == sorted(ALERTS)
    assert {name: rule.get("lastError") for name, rule in rules.items() if rule["health"] != "ok"} == {}
    firing = [name for name, rule in rules.items() if rule["state"] == "firing"]
    assert firing == [], "a healthy cluster raises no alert"


def test_the_metrics_are_what_prometheus_recommends(promtool, cluster):
    text = urllib.request.urlopen(cluster.nodes[0]["admin_url"] + "/metrics", timeout=5).read()
    ran = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, b"")


def test_panels_have_places_and_names_of_their_own():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    titles = [panel["title"] for panel in panels()]
    assert len(set(ids)) == len(ids) and len(set(titles)) == len(titles) > 40
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) and panel["fieldConfig"]["defaults"]["unit"]


def test_the_chart_carries_the_dashboard():
    config = objects(case("everything"))["ConfigMap", "chat-dashboard"]
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config["data"]["blindpipe.json"]) == DASHBOARD

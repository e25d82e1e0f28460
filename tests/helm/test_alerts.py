"""Each alert fires when it should, stays quiet when it should, and has an entry in the runbooks."""

import re
import subprocess

import pytest
import yaml

from chart import CHART, HERE, ROOT, case, merged, objects

RULES = CHART / "files/alerts.yaml"
RUNBOOK = ROOT / "docs/runbooks/alerts.md"
CASES = yaml.safe_load((HERE / "alerts.yaml").read_text())
POD = {"job": "blindpipe", "namespace": "messaging", "pod": "chat-1"}


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


ALERTS = [rule["alert"] for rule in rules()]


def series_table():
    """(name, kind, help) of each row of `src/metrics/series.rs`."""
    text = (ROOT / "src/metrics/series.rs").read_text()
    found = re.findall(r'"([a-z][a-z0-9_]+)",\s*Kind::(\w+),\s*"([^"]*)"', text)
    assert len(found) == text.count("Kind::") > 50
    return found


def known_series():
    """The names of these rows, with those that a histogram has."""
    names = {"up"}
    for name, kind, _ in series_table():
        suffixes = [""] if kind in ("Counter", "Gauge") else ["_bucket", "_sum", "_count"]
        names |= {name + suffix for suffix in suffixes}
    return names


def series_in(query):
    """The names of the series that a query reads."""
    bare = re.sub(r"\{[^{}]*\}", lambda match: " " + " ".join(re.findall(r'__name__=~"([^"]*)"', match[0])).replace("|", " "), query)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)", "", bare)
    bare = re.sub(r"\[[^\[\]]*\]|offset \w+|\"[^\"]*\"|\$\w+", "", bare)
    words = {"and", "or", "unless", "bool", "group_left", "group_right"}
    return {word for word in re.findall(r"\b[a-z_][a-z0-9_]*\b(?!\s*\()", bare) if word not in words}


def with_labels(series):
    name, _, own = series.partition("{")
    labels = dict(POD, **dict(re.findall(r'(\w+)="([^"]*)"', own)))
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


def with_nans(values):
    """promtool repeats numbers only."""
    return re.sub(r"NaNx(\d+)", lambda match: "NaN " * (int(match[1]) + 1), values)


def promtool_cases(rule, which):
    spec = CASES[rule["alert"]]
    labels = {**rule["labels"], **spec["labels"]}
    cases = spec[which] if isinstance(spec[which], list) else [spec[which]]
    for n, series in enumerate(cases):
        yield {
            "name": f"{rule['alert']} {which} {n}",
            "interval": "15s",
            "input_series": [
                {"series": with_labels(name), "values": with_nans(values)} for name, values in series.items()
            ],
            "alert_rule_test": [
                {
                    "eval_time": spec["at"],
                    "alertname": rule["alert"],
                    "exp_alerts": [{"exp_labels": labels}] if which == "fires" else [],
                }
            ],
        }


def test_every_alert_has_a_case():
    assert sorted(CASES) == sorted(ALERTS)
    assert len(set(ALERTS)) == len(ALERTS) > 20


def test_every_alert_fires_and_stays_quiet(promtool, tmp_path):
    written = yaml.safe_load(RULES.read_text())
    for group in written["groups"]:
        for rule in group["rules"]:
            # Texts have a test of their own; here they would have to be repeated.
            rule.pop("annotations")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(written))
    tests = [one for rule in rules() for which in ("fires", "quiet") for one in promtool_cases(rule, which)]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    ran = subprocess.run([promtool, "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # A case that is turned round fails, so the others prove something.
    for test in tests:
        expected = test["alert_rule_test"][0]
        expected["exp_alerts"] = [] if expected["exp_alerts"] else [{"exp_labels": {"severity": "warning"}}]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    ran = subprocess.run([promtool, "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.stdout + ran.stderr).count("alertname: ") == len(tests)


def test_the_rules_are_what_prometheus_reads(promtool):
    """As they stand, and as the chart renders them."""
    ran = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True)
    assert ran.returncode == 0 and f"{len(ALERTS)} rules found" in ran.stdout, ran.stdout + ran.stderr
    values = merged(case("everything"), {"prometheusRule": {"disabled": ["BlindpipeMailsFail"]}})
    groups = objects(values)["PrometheusRule", "chat"]["spec"]["groups"]
    rendered = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    assert sorted(rendered) == sorted(set(ALERTS) - {"BlindpipeMailsFail"})
    for rule in rules():
        if rule["alert"] in rendered:
            found = rendered[rule["alert"]]
            assert (found["expr"], found.get("for"), found["labels"]) == (rule["expr"], rule.get("for"), rule["labels"])
            assert found["annotations"]["summary"] == rule["annotations"]["summary"]


def test_every_series_of_an_alert_exists():
    known = known_series()
    for rule in rules():
        used = series_in(rule["expr"])
        assert used and used <= known, (rule["alert"], used - known)
        assert 'job="blindpipe"' in rule["expr"], rule["alert"]


def known_labels():
    """{counter: (label, values)} of `src/metrics/labels.rs`."""
    text = (ROOT / "src/metrics/labels.rs").read_text().split("pub(super) fn")[0]
    found = re.findall(r'\(\s*"(\w+)",\s*"(\w*)",\s*&\[([^\]]*)\]', text)
    assert len(found) == text.count("_total") > 15
    return {name: (label, re.findall(r'"(\w+)"', values)) for name, label, values in found}


def test_every_label_of_an_alert_exists():
    """Values of counters are those of the server's table; other values are words of its sources."""
    known, held = known_labels(), 0
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.rs"))
    scraped = {"job", "namespace", "pod", "__name__", "status", "route"}
    for rule in rules():
        for name, selector in re.findall(r"(\w+)\{([^{}]*)\}", rule["expr"]):
            for label, values in re.findall(r'(\w+)[!=]=?~?"([^"]*)"', selector):
                if label in scraped:
                    continue
                for value in values.split("|"):
                    if name in known:
                        assert label == known[name][0] and value in known[name][1], (rule["alert"], name, value)
                        held += 1
                    else:
                        assert re.search(rf"[\"']{value}[\"']", sources), (rule["alert"], name, value)
    assert held > 8


def test_retention_may_be_late_by_a_day():
    """The rule's limits are those of docs/operations.md and a day, for all tables that the server measures."""
    section = (ROOT / "docs/operations.md").read_text().split("## Retention")[1].split("\n## ")[0]
    limits = {}
    for tables, after in re.findall(r"^\| (`.*?) \|.*\| (.*) \|$", section, re.M):
        hours = re.search(r"(\d+) (hour|day)", after)
        hours = int(hours[1]) * {"hour": 1, "day": 24}[hours[2]] if hours and not after.startswith("at once") else 0
        limits |= {table: 24 + hours for table in re.findall(r"`(\w+)`", tables)}
    measured = re.findall(r"^ +\('(\w+)', ", (ROOT / "src/jobs/retention.rs").read_text(), re.M)
    assert sorted(limits) == sorted(measured)
    # Its age is no sign of a rule that failed.
    del limits["device"]
    (rule,) = (rule for rule in rules() if rule["alert"] == "BlindpipeRetentionStopped")
    found = re.findall(r'table=~"([^"]*)"\}\) > (\d+) \* 3600', rule["expr"])
    assert {table: int(hours) for tables, hours in found for table in tables.split("|")} == limits


def test_the_names_in_a_query_are_found():
    assert series_in('sum by (a, b) (rate(x_total{c="d"}[5m])) / on (pod) group_left y unless z offset 5m') == {
        "x_total",
        "y",
        "z",
    }


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_an_entry_in_the_runbooks(alert):
    sections = re.split(r"^## ", RUNBOOK.read_text(), flags=re.M)[1:]
    entries = {section.split("\n")[0]: section for section in sections}
    assert alert in entries, f"{RUNBOOK} has no section {alert}"
    for part in ("**Means**", "**Look**", "**Do**"):
        assert part in entries[alert], f"{alert}: {part}"


def test_no_entry_is_left_of_an_alert_that_is_gone():
    assert re.findall(r"^## (Blindpipe\w+)", RUNBOOK.read_text(), re.M) == ALERTS
    rendered = objects(case("everything"))["PrometheusRule", "chat"]["spec"]["groups"]
    for rule in (rule for group in rendered for rule in group["rules"]):
        assert rule["annotations"]["runbook_url"] == (
            f"https://docs.example.org/runbooks/alerts.md#{rule['alert'].lower()}"
        )

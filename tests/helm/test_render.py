"""Every way to set the chart renders objects that Kubernetes accepts, and only those."""

import ipaddress
import os
import re
import subprocess

import helm_python
import pytest
import yaml

from chart import CASES, CHART, HERE, ROOT, case, faults, merged, objects, pods, refusal, render

RENEW = os.environ.get("UPDATE_GOLDEN")


@pytest.mark.parametrize("name", CASES)
def test_objects_fit_the_schemas_of_kubernetes(name):
    found = objects(case(name))
    assert len(found) > 5
    assert [fault for document in found.values() for fault in faults(document)] == []


def test_the_schemas_find_faults():
    found = objects(case("layer7"))
    node = found["Deployment", "chat"]
    for change in (
        lambda spec: spec.update(replica=1),
        lambda spec: spec.update(replicas="1"),
        lambda spec: spec["template"]["spec"]["containers"][0].pop("name"),
        lambda spec: spec["template"]["spec"]["containers"][0]["env"].append({"name": "X", "valueFom": {}}),
    ):
        broken = merged(node, {})
        change(broken["spec"])
        assert len(faults(broken)) == 2, "a fault for each release of Kubernetes"
    route = objects(case("everything"))["HTTPRoute", "chat"]
    assert faults(merged(route, {"spec": {"hostname": "x"}}))


@pytest.mark.parametrize("name", CASES)
def test_what_is_rendered_is_the_golden_file(name):
    files = render(case(name))
    # The dashboard has tests of its own.
    files = {file: text for file, text in sorted(files.items()) if file != "dashboard.yaml"}
    text = "".join(f"# {file}\n{body.strip()}\n\n" for file, body in files.items())
    golden = HERE / "golden" / f"{name}.txt"
    if RENEW:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert golden.read_text() == text, "renew it with UPDATE_GOLDEN=1 make helm, and read the difference"


@pytest.mark.parametrize("name", CASES)
def test_helm_lints_without_a_word(name):
    report = helm_python.lint(CHART, case(name), strict=True, kube_version="v1.30.0")
    serious = [message for message in report["messages"] if message["severity"] > 1]
    assert (serious, report["errors"]) == ([], [])


@pytest.mark.parametrize("name", CASES)
def test_pods_are_restricted_and_ask_for_resources(name):
    """The `restricted` standard of Pod Security, and nothing of the cluster's API."""
    for owner, pod in pods(objects(case(name))):
        assert pod["automountServiceAccountToken"] is False, owner
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 65532, owner
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, owner
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, owner
            assert container["resources"]["requests"] and container["resources"]["limits"]["memory"], owner


@pytest.mark.parametrize("name", CASES)
def test_selectors_select_and_names_refer(name):
    found = objects(case(name))
    labels = [
        document["spec"]["template"]["metadata"]["labels"]
        for (kind, _), document in found.items()
        if kind == "Deployment"
    ]
    accounts = {key[1] for key in found if key[0] == "ServiceAccount"} | {case(name).get("serviceAccount", {}).get("name")}
    services = {
        service: {port["port"] for port in document["spec"]["ports"]}
        for (kind, service), document in found.items()
        if kind == "Service"
    }
    for (kind, owner), document in found.items():
        spec = document.get("spec", {})
        selector = {
            "Service": lambda: spec["selector"],
            "PodDisruptionBudget": lambda: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda: spec["podSelector"]["matchLabels"],
            "Deployment": lambda: spec["selector"]["matchLabels"],
        }.get(kind)
        if selector:
            chosen = [own for own in labels if selector().items() <= own.items()]
            assert chosen, f"{kind} {owner} selects no pod"
            if kind in ("Deployment", "PodDisruptionBudget"):
                assert len(chosen) == 1, f"{kind} {owner} selects pods of another"
        if kind == "Deployment":
            assert spec["template"]["spec"]["serviceAccountName"] in accounts
            names = {volume["name"] for volume in spec["template"]["spec"].get("volumes", [])}
            mounted = {mount["name"] for c in spec["template"]["spec"]["containers"] for mount in c.get("volumeMounts", [])}
            assert names == mounted
        if kind == "Ingress":
            backend = spec["rules"][0]["http"]["paths"][0]["backend"]["service"]
            assert backend["port"]["number"] in services[backend["name"]]
        if kind == "HTTPRoute":
            backend = spec["rules"][0]["backendRefs"][0]
            assert backend["port"] in services[backend["name"]]
        if kind in ("HorizontalPodAutoscaler", "ScaledObject"):
            target = found["Deployment", spec["scaleTargetRef"]["name"]]
            assert "replicas" not in target["spec"], "two would set the number of pods"
        if kind == "ServiceMonitor":
            chosen = [
                service
                for (kind_, service), document_ in found.items()
                if kind_ == "Service" and spec["selector"]["matchLabels"].items() <= document_["metadata"]["labels"].items()
            ]
            assert chosen == [f"{owner}-admin"]


@pytest.mark.parametrize("name", CASES)
def test_a_pod_ends_after_its_drain(name):
    """preStop, the lag of the drain, and the 30 s in which a node promises to be gone."""
    found = objects(case(name))
    for key in [key for key in found if key[0] == "Deployment"]:
        pod = found[key]["spec"]["template"]["spec"]
        container = pod["containers"][0]
        env = {entry["name"]: entry.get("value") for entry in container["env"]}
        sleep = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert pod["terminationGracePeriodSeconds"] >= sleep + int(env["DRAIN_LAG_SECONDS"]) + 30


def test_probes_are_asked_on_the_admin_port_and_no_service_shows_it_outside():
    for name in CASES:
        found = objects(case(name))
        for key in [key for key in found if key[0] == "Deployment"]:
            container = found[key]["spec"]["template"]["spec"]["containers"][0]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert container[probe]["httpGet"]["port"] == "admin"
        for (kind, service), document in found.items():
            if kind == "Service":
                targets = {port["targetPort"] for port in document["spec"]["ports"]}
                inside = document["spec"].get("clusterIP") == "None"
                assert targets == ({"admin"} if inside else {"public"}), service


def test_a_layer_7_balancer_passes_sockets_and_uploads():
    found = objects(case("layer7"))
    ingress = found["Ingress", "chat"]
    notes = ingress["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io/"
    # A poll waits 25 s, and a socket may be silent for longer.
    assert int(notes[prefix + "proxy-read-timeout"]) >= 3600 and int(notes[prefix + "proxy-send-timeout"]) >= 3600
    # An upload is 100 MB, and streams.
    assert notes[prefix + "proxy-body-size"] == "101m" and notes[prefix + "proxy-request-buffering"] == "off"
    # A repeated POST would be a second request.
    assert notes[prefix + "proxy-next-upstream"] == "off"
    assert ingress["spec"]["tls"] == [{"hosts": ["chat.example.org"], "secretName": "chat-tls"}]
    env = found["Deployment", "chat"]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "TRUSTED_PROXIES", "value": "10.42.0.0/16"} in env
    own = objects(case("hpa"))["Ingress", "chat"]["metadata"]["annotations"]
    assert own["haproxy.org/timeout-tunnel"] == "600s", "the operator's annotation wins"
    assert own["haproxy.org/server-ssl"] == "true", "the nodes terminate TLS"


def test_a_layer_4_balancer_leaves_tls_and_addresses_to_the_nodes():
    found = objects(case("layer4"))
    service = found["Service", "chat"]["spec"]
    assert (service["type"], service["externalTrafficPolicy"]) == ("LoadBalancer", "Local")
    pod = found["Deployment", "chat"]["spec"]["template"]["spec"]
    env = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
    assert env["TLS_CERT_FILE"] == "/etc/blindpipe/tls/tls.crt" and "TRUSTED_PROXIES" not in env
    assert env["PROXY_PROTOCOL_FROM"] == "198.51.100.0/24,2001:db8::/64"
    # A secret's files belong to root and the group of fsGroup; nobody else reads the key.
    volume = next(volume for volume in pod["volumes"] if volume["name"] == "tls")
    assert volume["secret"]["defaultMode"] == 0o440


def test_the_migration_needs_nothing_that_comes_after_it():
    for name in CASES:
        found = objects(case(name))
        jobs = [document for key, document in found.items() if key == ("Job", "chat-migrate")]
        assert len(jobs) == (0 if name == "hpa" else 1)
        for job in jobs:
            assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
            made = {(kind, other) for kind, other in found if kind in ("ServiceAccount", "ConfigMap", "Secret")}
            text = yaml.safe_dump(job)
            assert "serviceAccountName" not in text
            assert not [other for _, other in made if f"name: {other}\n" in text]


def test_nodes_never_see_the_secrets_of_the_owner_and_of_the_eraser():
    for name in CASES:
        for owner, pod in pods(objects(case(name))):
            names = {entry["name"] for c in pod["containers"] for entry in c.get("env", [])}
            if owner.endswith("-migrate"):
                assert {"MIGRATE_DATABASE_URL", "ERASE_DATABASE_URL"} <= names and "SERVER_SECRET" not in names
            elif owner.endswith("-erase"):
                assert {name for name in names if "DATABASE" in name} <= {"ERASE_DATABASE_URL", "ERASE_DATABASE_PASSWORD"}
            elif owner.endswith("-load-test-end"):
                # It deletes rows that no node may delete.
                assert "MIGRATE_DATABASE_URL" in names and "ERASE_DATABASE_URL" not in names
            else:
                assert not [found for found in names if found.startswith(("MIGRATE_", "ERASE_"))]


def test_the_chart_makes_no_secret_and_shows_none():
    for name in CASES:
        assert not [key for key in objects(case(name)) if key[0] == "Secret"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"secrets": {"owner": ""}}, "secrets.owner"),
        ({"secrets": {"eraser": ""}}, "secrets.eraser"),
        ({"trustedProxies": [], "ingress": {"enabled": False}}, "tls.secret or trustedProxies"),
        ({"trustedProxies": [], "tls": {"secret": "x"}}, "trustedProxies: name the networks"),
        ({"proxyProtocolFrom": ["10.0.0.0/8"]}, "proxyProtocolFrom: needs tls.secret"),
        ({"objectStore": {"url": ""}}, "objectStore: give a bucket"),
        ({"objectStore": {"volume": {"enabled": True}}}, "not both"),
        ({"objectStore": {"url": "", "volume": {"enabled": True}}}, "several pods must share the files"),
        ({"replicas": 1, "worker": {"enabled": True}, "objectStore": {"url": "", "volume": {"enabled": True}}}, "several pods"),
        ({"replicas": 1, "hpa": {"enabled": True}, "objectStore": {"url": "", "volume": {"enabled": True}}}, "several pods"),
        ({"objectStore": {"url": "", "direct": True, "volume": {"enabled": True, "accessMode": "ReadWriteMany"}}}, "direct"),
        ({"hpa": {"enabled": True}, "keda": {"enabled": True, "prometheusUrl": "http://p"}}, "choose one"),
        ({"keda": {"enabled": True}}, "keda.prometheusUrl"),
        ({"gateway": {"enabled": True}}, "gateway.parentRefs"),
        ({"gateway": {"enabled": True, "parentRefs": [{"name": "x"}]}, "tls": {"secret": "x"}}, "gateway.enabled"),
        ({"redis": {"mode": "cluster"}}, "redis.hosts"),
        ({"redis": {"mode": "single", "hosts": ["a:1", "b:1"]}}, "one host"),
        ({"database": {"pgbouncer": {"enabled": True}}}, "database.pgbouncer"),
        ({"service": {"externalTrafficPolicy": "Local"}}, "externalTrafficPolicy"),
        ({"loadTest": {"enabled": True}}, "loadTest.image"),
        ({"loadTest": {"enabled": True, "image": "loadtest:1"}, "migrate": {"enabled": False}, "secrets": {"owner": ""}}, "secrets.owner"),
        ({"serviceMonitor": {"enabled": True}}, "networkPolicy.monitoring"),
        ({"networkPolicy": {"peers": {"redis": {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": []}}}}, "peers.redis"),
        # By the schema of the values.
        ({"replica": 3}, "replica"),
        ({"ingress": {"enable": True}}, "enable"),
        ({"settings": {"MAX_SOCKET": 1}}, "MAX_SOCKET"),
        ({"settings": {"SERVER_SECRET": "x"}}, "SERVER_SECRET"),
        ({"publicUrl": "http://chat.example.org"}, "publicUrl"),
        ({"publicUrl": "https://chat.example.org/"}, "publicUrl"),
        ({"image": {"repository": ""}}, "repository"),
        ({"replicas": 0}, "replicas"),
        # An empty peer is everybody.
        ({"networkPolicy": {"peers": {"redis": {"to": [{}]}}}}, "redis"),
    ],
)
def test_values_that_cannot_work_are_refused(changes, said):
    assert said in refusal(merged(case("layer7"), changes))


# Private and shared addresses, links of a machine, and services of metadata.
INSIDE = ["10.1.2.3", "172.31.0.1", "192.168.1.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "169.254.169.254",
          "169.254.170.2", "168.63.129.16", "::1", "fd00:ec2::254", "fd12:3456::1", "fe80::1"]


def reached(policy, address, port):
    """Whether a rule of addresses lets pods call this one; rules of DNS and of labels do not count."""
    address = ipaddress.ip_address(address)
    for rule in policy["spec"]["egress"]:
        if port not in [entry["port"] for entry in rule["ports"]]:
            continue
        assert rule.get("to"), "a rule without peers admits everybody"
        for peer in rule["to"]:
            block = peer.get("ipBlock", {"cidr": "255.255.255.255/32"})
            inside = [ipaddress.ip_network(cidr) for cidr in [block["cidr"], *block.get("except", [])]]
            if address in inside[0] and not any(address in other for other in inside[1:]):
                return True
    return False


def test_pods_call_public_addresses_and_the_peers_that_are_named():
    policy = objects(case("layer7"))["NetworkPolicy", "chat"]
    for port in (443, 5432, 6379, 465):
        assert reached(policy, "203.0.113.7", port) and reached(policy, "2001:db8::7", port)
        assert [address for address in INSIDE if reached(policy, address, port)] == []
    assert not reached(policy, "203.0.113.7", 22)
    named = {"networkPolicy": {"peers": {"postgres": {"to": [{"ipBlock": {"cidr": "10.1.2.0/24"}}]}}}}
    policy = objects(merged(case("layer7"), named))["NetworkPolicy", "chat"]
    assert reached(policy, "10.1.2.3", 5432)
    assert not reached(policy, "10.1.3.3", 5432) and not reached(policy, "10.1.2.3", 443)


def test_a_collector_is_called_on_its_port():
    peers = {"tracing": {"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}]}}
    values = {"tracing": {"endpoint": "https://collector.example.org:4318"}, "networkPolicy": {"peers": peers}}
    policy = objects(merged(case("layer7"), values))["NetworkPolicy", "chat"]
    assert reached(policy, "10.9.0.1", 4318) and reached(policy, "203.0.113.7", 4318)


def test_the_admin_port_is_for_the_scraper_that_is_named():
    def scrapers(values):
        rules = objects(values)["NetworkPolicy", "chat"]["spec"]["ingress"]
        (rule,) = [rule for rule in rules if rule["ports"] == [{"port": 9090}]]
        return rule["from"]

    (test,) = scrapers(case("layer7"))
    assert test["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "test"
    named = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert scrapers(merged(case("layer7"), {"networkPolicy": {"monitoring": [named]}})) == [test, named]


def test_the_notes_say_what_the_policy_needs():
    notes = render(case("layer7"))["NOTES.txt"]
    assert "only for: postgres, redis, mail, objectStore." in notes and "networkPolicy.monitoring" in notes
    assert "only for: mail, objectStore." in render(case("everything"))["NOTES.txt"]
    assert "networkPolicy" not in render(merged(case("layer7"), {"networkPolicy": {"enabled": False}}))["NOTES.txt"]


def test_the_load_test_has_only_options_of_its_program():
    job = objects(case("everything"))["Job", "chat-load-test"]
    options = (ROOT / "loadtest/src/main.rs").read_text()
    options = options[options.index("pub struct Options") :]
    fields = set(re.findall(r"^    (\w+): ", options[: options.index("\n}")], re.M))
    named = {argument[2:].split("=")[0].replace("-", "_") for argument in job["spec"]["template"]["spec"]["containers"][0]["args"] if argument.startswith("--")}
    assert named and named <= fields


def test_keda_does_not_take_silence_for_idle_nodes():
    prometheus, processor = objects(case("everything"))["ScaledObject", "chat"]["spec"]["triggers"]
    assert (prometheus["type"], processor["type"]) == ("prometheus", "cpu")
    assert prometheus["metadata"]["ignoreNullValues"] == "false"
    # Labels of a scrape without the operator.
    (scrape,) = scrapes_of_the_readme()
    made = {step.get("target_label") for step in scrape["relabel_configs"]} | {"job"}
    assert set(re.findall(r"(\w+)=", prometheus["metadata"]["query"])) <= made


def scrapes_of_the_readme():
    blocks = re.findall(r"```yaml\n(.*?)```", (CHART / "README.md").read_text(), re.S)
    (config,) = (yaml.safe_load(block) for block in blocks if "scrape_configs:" in block)
    return config["scrape_configs"]


def test_prometheus_reads_the_scrape_of_the_readme(promtool, tmp_path):
    (scrape,) = scrapes_of_the_readme()
    # Debian's programs have no discovery by Kubernetes.
    assert scrape["kubernetes_sd_configs"][0]["role"] == "endpoints"
    checked = {key: value for key, value in scrape.items() if key != "kubernetes_sd_configs"}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [checked]}))
    ran = subprocess.run([promtool, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # Labels by which rules group, and the name of the job.
    rules = (CHART / "files/alerts.yaml").read_text()
    made = {step.get("target_label") for step in scrape["relabel_configs"]}
    assert {"namespace", "pod"} <= made and scrape["job_name"] == "blindpipe" and 'job="blindpipe"' in rules
    # The service and the port that are kept.
    service = objects(case("layer7"))["Service", "chat-admin"]
    keep = next(step for step in scrape["relabel_configs"] if step.get("action") == "keep")
    assert keep["regex"] == f"{service['metadata']['labels']['app.kubernetes.io/name']};{service['spec']['ports'][0]['name']}"


def test_all_faults_are_said_at_once():
    said = refusal({**case("layer7"), "trustedProxies": [], "objectStore": {"url": ""}})
    assert "tls.secret or trustedProxies" in said and "objectStore: give" in said


def test_the_values_of_the_readme_are_the_case_of_the_tests():
    readme = (CHART / "README.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", readme, re.S)
    assert case("layer7") in [yaml.safe_load(block) for block in blocks]

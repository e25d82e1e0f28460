"""The chart and the settings of the server know each other."""

import json
import os
import re

from chart import CASES, CHART, case, merged, objects, pods, settings

# Variables that no setting of the server is: read by its runtime or its TLS library.
RUNTIME = {"SSL_CERT_FILE", "TOKIO_WORKER_THREADS"}
# Settings with a value of their own in the chart, or that only a developer sets.
MANAGED = set(
    """NODE_NAME LISTEN_ADDR ADMIN_ADDR TLS_CERT_FILE TLS_KEY_FILE TRUSTED_PROXIES PROXY_PROTOCOL_FROM
    ALLOWED_ORIGINS PUBLIC_URL APP_DIR
    DATABASE_URL MIGRATE_DATABASE_URL REDIS_URL ACCESS_TOKEN_KEYS SERVER_SECRET MAIL_URL MAIL_FROM RP_ID RP_ORIGIN
    TURNSTILE_SECRET OBJECT_STORE_URL OBJECT_STORE_ENDPOINT OBJECT_STORE_REGION OBJECT_STORE_ACCESS_KEY
    OBJECT_STORE_SECRET OBJECT_STORE_DIRECT DRAIN_LAG_SECONDS WEBHOOK_WORKER OTEL_EXPORTER_OTLP_ENDPOINT
    OTEL_EXPORTER_OTLP_HEADERS TRACE_SAMPLE_RATIO TRACE_TRUST_CALLERS""".split()
)
# Those can still be given as `extraEnv`.
FOR_DEVELOPERS = {"PROFILE", "LIMITS_OFF", "QUICK_HASHES", "UPKEEP_SPEED"}


def variables():
    """(case, name, value) of every variable that the chart sets."""
    for name in CASES:
        for _, pod in pods(objects(case(name))):
            for container in pod["containers"]:
                entries = container.get("env", [])
                assert len({entry["name"] for entry in entries}) == len(entries), "a variable is set twice"
                for entry in entries:
                    yield name, entry["name"], entry.get("value")


def test_every_variable_is_a_setting_or_a_part_of_one():
    known, seen = settings(), list(variables())
    assert len(known) > 40
    parts = {part for _, _, value in seen for part in re.findall(r"\$\((\w+)\)", value or "")}
    strange = {name for _, name, _ in seen} - set(known) - parts - RUNTIME
    assert strange == set()


def test_every_setting_can_be_set():
    schema_file = CHART / "values.schema.json"
    schema = json.loads(schema_file.read_text())
    wanted = set(settings()) - MANAGED - FOR_DEVELOPERS
    if os.environ.get("UPDATE_GOLDEN"):
        names = {name: {"type": ["string", "integer", "boolean"]} for name in settings() if name in wanted}
        schema["properties"]["settings"]["properties"] = names
        schema_file.write_text(json.dumps(schema, indent=2) + "\n")
    offered = set(schema["properties"]["settings"]["properties"])
    assert offered == wanted, "UPDATE_GOLDEN=1 make helm adds a new setting to the schema of the values"
    assert MANAGED <= {name for _, name, _ in variables()}, "the cases of the tests leave one out"


def test_a_setting_reaches_the_pods_as_it_is_written():
    given = {"MAX_SOCKETS": 1000000, "DATABASE_REQUIRE_DURABLE": False, "LOG": "info,blindpipe=debug"}
    values = merged(case("layer4"), {"settings": given})
    found = objects(values)
    for name in ("chat", "chat-worker"):
        entries = found["Deployment", name]["spec"]["template"]["spec"]["containers"][0]["env"]
        env = {entry["name"]: entry.get("value") for entry in entries}
        assert [env[key] for key in given] == ["1000000", "false", "info,blindpipe=debug"]


def test_urls_are_made_of_the_values():
    def env(values, owner="chat"):
        entries = dict(pods(objects(values)))[owner]["containers"][0]["env"]
        # A variable is expanded only if it comes before.
        seen = set()
        for entry in entries:
            assert set(re.findall(r"\$\((\w+)\)", entry.get("value") or "")) <= seen, entry["name"]
            seen.add(entry["name"])
        return {entry["name"]: entry.get("value") for entry in entries}

    layer4 = case("layer4")
    assert env(layer4)["DATABASE_URL"] == (
        "postgres://blindpipe_serve:$(DATABASE_PASSWORD)@pgbouncer.internal:6432/blindpipe?sslmode=require"
    )
    assert env(layer4, "chat-migrate")["MIGRATE_DATABASE_URL"] == (
        "postgres://blindpipe:$(MIGRATE_DATABASE_PASSWORD)@postgres.internal:5432/blindpipe?sslmode=require"
    ), "a migration goes past PgBouncer"
    assert env(layer4)["REDIS_URL"] == (
        "rediss-sentinel://chat:$(REDIS_PASSWORD)@s1.internal:26379"
        "?sentinelServiceName=mymaster&sentinelPassword=$(REDIS_SENTINEL_PASSWORD)&node=s2.internal:26379&node=s3.internal:26379"
    )
    assert env(case("everything"))["REDIS_URL"] == (
        "rediss-cluster://:$(REDIS_PASSWORD)@r1.internal:6379?node=r2.internal:6379"
    )
    assert env(case("one-node"))["REDIS_URL"] == "redis://redis.internal:6379"
    assert env(layer4)["WEBHOOK_WORKER"] == "false" and env(layer4, "chat-worker")["WEBHOOK_WORKER"] == "true"
    assert env(case("layer7"))["WEBHOOK_WORKER"] == "true"
    assert env(case("one-node"))["RP_ID"] == "chat.example.org", "the host without the port"

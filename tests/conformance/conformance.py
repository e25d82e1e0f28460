"""Holds a running cluster to its OpenAPI document: schemathesis makes calls as a user and as an agent.

No answer is a server error, has an undeclared status or content type, or differs from its schema."""

import email
import email.policy
import hashlib
import json
import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
import time

import requests

ROOT = pathlib.Path(__file__).parent.parent.parent
HERE = pathlib.Path(__file__).parent
DOCUMENT = ROOT / "docs/api/openapi.json"
START_TIMEOUT = 120
MAIL_TIMEOUT = 10
PASSWORD = "correct horse battery"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


class Cluster:
    """A dev cluster of two nodes without limits of rates."""

    def __init__(self, devcluster, folder):
        self.file, self.log = folder / "cluster.json", folder.with_suffix(".log")
        self.command = [devcluster, "--dir", folder]
        subprocess.run([*self.command, "clean"], check=True, capture_output=True)
        with self.log.open("w") as log:
            arguments = [*self.command, "--packages", ROOT / ".dev/packages", "--no-demo"]
            environment = {**os.environ, "LIMITS_OFF": "true"}
            self.process = subprocess.Popen(arguments, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + START_TIMEOUT
        while not self.file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(self.log.read_text()[-3000:])
            time.sleep(0.1)
        described = json.loads(self.file.read_text())
        self.bases = [node["base_url"] for node in described["nodes"]]
        self.authority = described["ca_file"]
        self.mails = pathlib.Path(described["mail_dir"])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)
        subprocess.run([*self.command, "clean"], check=True, capture_output=True)


class Caller:
    """A user or an agent at a node."""

    def __init__(self, cluster, base):
        self.cluster, self.base = cluster, base
        self.http = requests.Session()
        self.http.trust_env = False
        self.http.verify = cluster.authority

    def call(self, method, path, body=None, **more):
        answer = self.http.request(method, self.base + path, json=body, timeout=30, **more)
        if not answer.ok:
            sys.exit(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()["data"]

    def bear(self, token):
        self.token = token
        self.http.headers["Authorization"] = f"Bearer {token}"
        return self

    def mailed_code(self, address):
        deadline = time.monotonic() + MAIL_TIMEOUT
        while time.monotonic() < deadline:
            for file in self.cluster.mails.glob("*.eml"):
                mail = email.message_from_bytes(file.read_bytes(), policy=email.policy.default)
                found = re.search(r"^\s*(\d{8})\s*$", mail.get_body(("plain",)).get_content(), re.MULTILINE)
                if mail["To"] == address and found:
                    return found[1]
            time.sleep(0.05)
        sys.exit("no mail with a code")

    def register(self, name):
        address = f"{name}-{secrets.token_hex(6)}@example.org"
        body = {"email": address, "scene": "register", "turnstile_token": "dev-pass"}
        self.call("POST", "/auth/send-code", body)
        body = {
            "email": address, "code": self.mailed_code(address), "account_password": PASSWORD,
            "display_name": name, "device_locale": "en-GB", "turnstile_token": "dev-pass",
            "device_id": f"device-of-{name}",
        }
        signed_in = self.call("POST", "/auth/register", body)
        self.id, self.device = signed_in["user_id"], signed_in["device_id"]
        return self.bear(signed_in["access_token"])

    def agent(self, name, manifest=None):
        made = self.call("POST", "/agents", {"display_name": name, "manifest": manifest})
        agent = Caller(self.cluster, self.base)
        agent.id = made["agent_id"]
        return agent.bear(made["token"])


def upload(caller, path, conversation):
    """Uploads and confirms a file; returns what is known of it."""
    content = secrets.token_bytes(64)
    body = {"filename": "plan.pdf", "content_type": "application/pdf", "size": len(content), "conversation_id": conversation}
    asked = caller.call("POST", path, body)
    put = caller.http.put(asked["upload_url"], data=content, headers=asked.get("headers", {}), timeout=30)
    if not put.ok:
        sys.exit(f"PUT of an upload: {put.status_code} {put.text}")
    body = {"upload_id": asked["upload_id"], "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    return asked, caller.call("POST", "/files/confirm", body)


def build(cluster):
    """Makes users, agents, conversations, a group, messages, files and shares; returns the worlds of both callers."""
    at = cluster.bases[0]
    alice, bob, spare = (Caller(cluster, at).register(name) for name in ("alice", "bob", "carol"))
    helper, passing = alice.agent("helper"), alice.agent("passing")
    direct = alice.call("POST", "/conversations", {"type": "direct", "user_id": bob.id})
    with_agent = alice.call("POST", "/conversations", {"type": "agent", "agent_id": helper.id})
    group = alice.call("POST", "/groups", {"title": "a group", "member_ids": [bob.id]})
    conversations = [made["conversation_id"] for made in (direct, with_agent, group)]
    instance = alice.call("POST", f"/groups/{conversations[2]}/agent-instances", {"agent_id": helper.id})
    payload = {"type": "text", "text": "hello"}
    sent = [alice.call("POST", f"/conversations/{id}/messages", {"payload": payload}) for id in conversations]
    helper.call("POST", f"/agents/{helper.id}/messages", {"conversation_id": conversations[1], "payload": payload})
    asked, file = upload(alice, "/files", conversations[1])
    share = alice.call("POST", "/shares", {"contact": True, "expires_at": in_an_hour()})
    relations = alice.http.get(at + "/relations", timeout=30).json()["data"]
    constants = {"turnstile_token": ["dev-pass"], "account_password": [PASSWORD]}
    ids = {
        **constants,
        "agent_id": [helper.id],
        "conversation_id": conversations,
        "user_id": [alice.id, bob.id],
        "principal_id": [alice.id, bob.id, helper.id],
        "member_ids": [bob.id],
        "device_id": [alice.device],
        "instance_id": [instance["instance_id"]],
        "upload_id": [asked["upload_id"]],
        "file_id": [file["file_id"]],
        "object_key": [file["object_key"]],
        "share_id": [share["share_id"]],
        "relation_id": [relation["relation_id"] for relation in relations],
        "message_id": [message["message_id"] for message in sent],
    }
    spares = {
        **constants, "agent_id": [passing.id], "principal_id": [spare.id], "conversation_id": [conversations[2]],
    }
    return {
        name: {"ids": ids, "spare": spares, "token": caller.token, "spare_token": spare.token}
        for name, caller in (("user", alice), ("agent", helper))
    }


def in_an_hour():
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() + 3600))


def main(devcluster, folder, arguments):
    cluster = Cluster(devcluster, folder)
    failed = False
    try:
        for kind, world in build(cluster).items():
            file = folder.with_name(f"conformance-{kind}.json")
            file.write_text(json.dumps(world))
            print(f"== as {kind}", flush=True)
            ran = subprocess.run(
                [
                    pathlib.Path(sys.executable).with_name("schemathesis"), "--config-file", HERE / "schemathesis.toml",
                    "run", DOCUMENT, "--url", cluster.bases[1], "--tls-verify", cluster.authority,
                    "--checks", CHECKS, "--phases", "coverage,fuzzing", "--warnings", "off", *arguments,
                ],
                env={
                    **os.environ, "WORLD": str(file), "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE),
                    "NO_PROXY": "*",
                },
            )
            failed |= ran.returncode != 0
            # A caller whose token had ended would have tested refusals only.
            caller = Caller(cluster, cluster.bases[1]).bear(world["token"])
            caller.call("GET", "/limits")
    finally:
        cluster.stop()
    sys.exit(failed)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).absolute(), sys.argv[3:])

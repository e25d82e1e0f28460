"""Runs a rendered pod as the kubelet would: its environment, arguments, user, files and probes."""

import http.client
import os
import re
import signal
import subprocess
import time

import sandbox
from chart import ROOT


def dockerfile(stage=None):
    """A stage, or the last one: {instruction: [arguments]}."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    stages = re.split(r"^FROM ", text, flags=re.M)
    chosen = next(one for one in reversed(stages) if stage is None or one.split("\n")[0].endswith(f" AS {stage}"))
    found = {"FROM": [chosen.split("\n")[0]]}
    for line in chosen.split("\n")[1:]:
        word, _, rest = line.partition(" ")
        if word.isupper():
            found.setdefault(word, []).append(re.sub(r"\s+", " ", rest.strip()))
    return found


def image_environment(stage=None):
    """The settings of an image and of its base (distroless)."""
    own = dict(re.findall(r'(\w+)="?([^\s"]+)"?', " ".join(dockerfile(stage).get("ENV", []))))
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
        **own,
    }


def entrypoint(stage=None):
    return re.findall(r'"([^"]+)"', dockerfile(stage)["ENTRYPOINT"][0])


class Pod:
    """The only container of a pod. `stores` has the secrets, config maps and claims of the namespace. `stage` is the
    image's part of the Dockerfile, if it is not the last."""

    def __init__(self, root, name, spec, stores, stage=None):
        self.root, self.name, self.spec, self.stores, self.stage = root, name, spec, stores, stage
        (self.container,) = spec["containers"]
        self.process = None
        self.log = root.parent / f"{name}.log"

    def environment(self):
        env = image_environment(self.stage)
        for entry in self.container.get("env", []):
            if "valueFrom" in entry:
                source = entry["valueFrom"]
                if "fieldRef" in source:
                    assert source["fieldRef"]["fieldPath"] == "metadata.name"
                    env[entry["name"]] = self.name
                else:
                    reference = source["secretKeyRef"]
                    env[entry["name"]] = self.stores["secrets"][reference["name"]][reference["key"]]
            else:
                # A reference to a variable that is not there stays as it is.
                env[entry["name"]] = re.sub(
                    r"\$\((\w+)\)", lambda match: env.get(match[1], match[0]), entry["value"]
                )
        return env

    def mounts(self):
        group = self.spec["securityContext"]["fsGroup"]
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", [])}
        mounts = []
        for mounted in self.container.get("volumeMounts", []):
            volume = volumes[mounted["name"]]
            folder = self.root.parent / "volumes" / f"{self.name}-{mounted['name']}"
            if "persistentVolumeClaim" in volume:
                folder = self.stores["claims"][volume["persistentVolumeClaim"]["claimName"]]
                mode, files = 0o2775, {}
            elif "emptyDir" in volume:
                mode, files = 0o2777, {}
            elif "secret" in volume:
                files = self.stores["secrets"][volume["secret"]["secretName"]]
                mode = 0o755
            else:
                files = self.stores["configs"][volume["configMap"]["name"]]
                mode = 0o755
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                (folder / name).write_text(content)
                (folder / name).chmod(volume.get("secret", {}).get("defaultMode", 0o644))
                self.own(folder / name, group)
            folder.chmod(mode)
            self.own(folder, group)
            (self.root / mounted["mountPath"].lstrip("/")).mkdir(parents=True, exist_ok=True)
            mounts.append((str(folder), mounted["mountPath"], mounted.get("readOnly", False)))
        return mounts

    @staticmethod
    def own(path, group):
        if os.geteuid() == 0:
            os.chown(path, 0, group)

    def start(self, arguments=None):
        security = self.spec["securityContext"]
        user, group, files = security["runAsUser"], security["runAsGroup"], [security["fsGroup"]]
        assert self.container["securityContext"]["readOnlyRootFilesystem"]
        mounts, root = self.mounts(), str(self.root)
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*entrypoint(self.stage), *(arguments or self.container["args"])],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: sandbox.enter(root, mounts, user, group, files),
            )
        return self

    def wait(self, seconds):
        return self.process.wait(timeout=seconds)

    def probe(self, name):
        """Whether the probe passes now."""
        probe = self.container[name]
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        get = probe["httpGet"]
        connection = http.client.HTTPConnection("127.0.0.1", ports[get["port"]], timeout=probe["timeoutSeconds"])
        try:
            connection.request("GET", get["path"])
            return 200 <= connection.getresponse().status < 400
        except OSError:
            return False
        finally:
            connection.close()

    def until_ready(self):
        """Waits as long as the startup probe would, and says why the pod ended if it did."""
        startup = self.container["startupProbe"]
        deadline = time.monotonic() + startup["periodSeconds"] * startup["failureThreshold"]
        while not (self.probe("startupProbe") and self.probe("readinessProbe")):
            assert self.process.poll() is None, f"{self.name} ended:\n{self.log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"{self.name} is not ready:\n{self.log.read_text()[-3000:]}"
            time.sleep(0.05)
        assert self.probe("livenessProbe")
        return self

    def identity(self):
        """(uid, gid, groups, effective capabilities, no new privileges) of the process, as the kernel sees it."""
        status = dict(
            line.split(":\t", 1)
            for line in open(f"/proc/{self.process.pid}/status").read().splitlines()
            if ":\t" in line
        )
        return (
            status["Uid"].split()[1],
            status["Gid"].split()[1],
            status["Groups"].split(),
            int(status["CapEff"], 16),
            status["NoNewPrivs"],
        )

    def end(self):
        """SIGTERM; the exit code, within the grace period."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(self.spec["terminationGracePeriodSeconds"])

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

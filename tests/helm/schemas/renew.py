"""Writes the schemas of this folder anew. README.md says where the two arguments come from.

    python renew.py FOLDER_OF_KUBERNETES_JSON_SCHEMA FOLDER_OF_TYPESCRIPT_SCHEMAS
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
# The oldest release that the chart allows, and the newest that there is a schema of.
RELEASES = ["1.29.0", "1.37.0"]
KINDS = {
    "v1/Service": "service-v1",
    "v1/ServiceAccount": "serviceaccount-v1",
    "v1/ConfigMap": "configmap-v1",
    "v1/PersistentVolumeClaim": "persistentvolumeclaim-v1",
    "v1/Pod": "pod-v1",
    "apps/v1/Deployment": "deployment-apps-v1",
    "batch/v1/Job": "job-batch-v1",
    "batch/v1/CronJob": "cronjob-batch-v1",
    "autoscaling/v2/HorizontalPodAutoscaler": "horizontalpodautoscaler-autoscaling-v2",
    "policy/v1/PodDisruptionBudget": "poddisruptionbudget-policy-v1",
    "networking.k8s.io/v1/Ingress": "ingress-networking-v1",
    "networking.k8s.io/v1/NetworkPolicy": "networkpolicy-networking-v1",
}
CUSTOM = {
    "keda.sh/v1alpha1/ScaledObject": "ScaledObject",
    "monitoring.coreos.com/v1/ServiceMonitor": "ServiceMonitor",
    "monitoring.coreos.com/v1/PrometheusRule": "PrometheusRule",
    "gateway.networking.k8s.io/v1/HTTPRoute": "HTTPRoute",
}


def bare(node):
    """The schema without prose, and with references into this file."""
    if isinstance(node, list):
        return [bare(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {}
    for key, value in node.items():
        if key in ("description", "$id", "$schema") and isinstance(value, str):
            continue
        if key == "$ref":
            value = "#/$defs/" + value.rsplit("/", 1)[-1]
        # `properties` may have a member called `description`.
        out[key] = (
            {name: bare(item) for name, item in value.items()} if key in ("properties", "$defs") else bare(value)
        )
    return out


def references(node):
    if isinstance(node, list):
        return {name for item in node for name in references(item)}
    if not isinstance(node, dict):
        return set()
    own = {node["$ref"].rsplit("/", 1)[-1]} if isinstance(node.get("$ref"), str) else set()
    return own | {name for item in node.values() for name in references(item)}


def bundle(kinds, definitions):
    """The kinds and all that they refer to."""
    needed, waiting = {}, references(kinds)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed[name] = bare(definitions[name])
            waiting |= references(needed[name])
    return {"kinds": kinds, "$defs": dict(sorted(needed.items()))}


def write(name, content):
    lines = json.dumps(content, indent=0, sort_keys=True, separators=(",", ":"))
    (HERE / name).write_text(lines + "\n")


def main(kubernetes, custom):
    for release in RELEASES:
        folder = kubernetes / f"v{release}-local-strict"
        definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
        kinds = {kind: bare(json.loads((folder / f"{file}.json").read_text())) for kind, file in KINDS.items()}
        write(f"kubernetes-{release.rsplit('.', 1)[0]}.json", bundle(kinds, definitions))
    kinds, definitions = {}, {}
    for kind, file in CUSTOM.items():
        schema = json.loads((custom / f"out-{file}.json").read_text())
        definitions |= {f"{file}.{name}": scoped(node, file) for name, node in schema["definitions"].items()}
        kinds[kind] = {"$ref": f"#/$defs/{file}.{file}"}
    write("custom.json", bundle(kinds, definitions))


def scoped(node, file):
    """References within the file of a kind, whose names another kind may use too."""
    if isinstance(node, list):
        return [scoped(item, file) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: f"#/definitions/{file}.{value.rsplit('/', 1)[-1]}" if key == "$ref" else scoped(value, file)
        for key, value in node.items()
    }


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))

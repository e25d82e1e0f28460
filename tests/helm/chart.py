"""The chart, rendered by Helm's own library, and the objects that come out."""

import copy
import json
import os
import pathlib
import re

import helm_python
import jsonschema
import yaml

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
CHART = ROOT / "helm/blindpipe"
CASES = sorted(path.stem for path in (HERE / "cases").glob("*.yaml"))

_loaded = helm_python.Chart.load(CHART)


class UniqueKeys(yaml.SafeLoader):
    """YAML as the API server reads it: a key that comes twice is an error."""


def _mapping(loader, node):
    keys = [loader.construct_object(key) for key, _ in node.value]
    twice = {str(key) for key in keys if keys.count(key) > 1}
    assert not twice, f"{node.start_mark}: twice: {twice}"
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


UniqueKeys.add_constructor("tag:yaml.org,2002:map", _mapping)


def case(name):
    return yaml.safe_load((HERE / f"cases/{name}.yaml").read_text())


def merged(values, changes):
    """`values` with `changes`, map by map, as several `--values` are merged."""
    out = copy.deepcopy(values)
    for key, value in changes.items():
        out[key] = merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def render(values, release="chat", namespace="messaging"):
    """The rendered templates, by file name. Values that the schema refuses raise."""
    # Tests that renew the chart's files change it meanwhile.
    chart = helm_python.Chart.load(CHART) if os.environ.get("UPDATE_GOLDEN") else _loaded
    chart.validate_schema(values)
    files = chart.render(values, name=release, namespace=namespace)
    return {name.removeprefix("blindpipe/templates/"): text for name, text in files.items() if text.strip()}


def objects(values, **options):
    """The rendered objects, by (kind, name)."""
    found = {}
    for name, text in render(values, **options).items():
        if name == "NOTES.txt":
            continue
        for document in yaml.load_all(text, UniqueKeys):
            if document:
                key = (document["kind"], document["metadata"]["name"])
                assert key not in found, f"{key} comes twice"
                found[key] = document
    return found


def refusal(values):
    """Why Helm refuses to render `values`."""
    try:
        render(values)
    except helm_python.HelmError as error:
        return str(error)
    return ""


def pods(found):
    """(name of the owner, spec of the pod) of every object that makes pods."""
    for (kind, name), document in found.items():
        if kind in ("Deployment", "Job"):
            yield name, document["spec"]["template"]["spec"]
        elif kind == "CronJob":
            yield name, document["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        elif kind == "Pod":
            yield name, document["spec"]


def _validators():
    for file in ("kubernetes-1.29.json", "kubernetes-1.37.json", "custom.json"):
        schemas = json.loads((HERE / "schemas" / file).read_text())
        kinds = {
            kind: jsonschema.Draft202012Validator({**schema, "$defs": schemas["$defs"]})
            for kind, schema in schemas["kinds"].items()
        }
        yield file, kinds


VALIDATORS = dict(_validators())


def faults(document):
    """The parts of an object that Kubernetes refuses, by every schema that has its kind."""
    kind = f"{document['apiVersion']}/{document['kind']}"
    fitting = {file: kinds[kind] for file, kinds in VALIDATORS.items() if kind in kinds}
    if not fitting:
        return [f"{kind}: no schema"]
    return [
        f"{file}: {kind} {document['metadata']['name']}: {error.json_path}: {error.message[:200]}"
        for file, validator in fitting.items()
        for error in validator.iter_errors(document)
    ]


def settings():
    """The settings of the server; a test of the server holds this table to its sources."""
    table = (ROOT / "docs/configuration.md").read_text()
    return dict(re.findall(r"^\| `([A-Z_]+)` \| (\S+)", table, re.M))

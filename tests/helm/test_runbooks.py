"""Commands and statements of the runbooks exist."""

import json
import re
import subprocess

import pytest

from chart import CHART, ROOT
from conftest import TARGET

PAGES = sorted((ROOT / "docs/runbooks").glob("*.md")) + [ROOT / "docs/operations.md", CHART / "README.md"]
# Of an administrator: they cannot be prepared, and change the whole server.
OF_ADMINISTRATORS = ("create role", "drop role", "drop owned", "create database", "alter role")


def blocks(page, language):
    return [re.sub(r"^ {3}", "", block, flags=re.M) for block in re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)]


def statements():
    for page in PAGES:
        for block in blocks(page, "sql"):
            for statement in filter(None, (part.strip() for part in block.split(";"))):
                yield page.name, statement


def test_there_are_some():
    assert len(list(statements())) > 20


def test_every_statement_fits_the_schema(owner_sql):
    """Each is prepared by Postgres as the owner, which reads names, types and rights."""
    script = [r"\set user 01890000-0000-7000-8000-000000000000"]
    for n, (page, statement) in enumerate(statements()):
        if statement.lower().startswith(OF_ADMINISTRATORS):
            continue
        statement = statement.replace("ID OF THE AGENT", "01890000-0000-7000-8000-000000000000")
        script += [rf"\echo {page}: {statement.splitlines()[0][:60]!r}", f"prepare runbook_{n} as {statement};"]
    ran = owner_sql(text="\n".join(script))
    assert ran.returncode == 0, ran.stdout[-300:] + ran.stderr


def test_every_command_of_the_server_exists():
    asked = set()
    for page in PAGES:
        asked |= set(re.findall(r"\bblindpipe ((?:audit )?[a-z]+)\b", " ".join(
            re.findall(r"`blindpipe [^`]*`|-- blindpipe .*", page.read_text()))))
    assert {"migrate", "serve", "audit verify", "healthcheck"} <= asked
    for words in asked:
        ran = subprocess.run([TARGET / "blindpipe", *words.split(), "--help"], capture_output=True, text=True)
        assert ran.returncode == 0, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, section = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), target
        if section:
            slugs = {
                re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
                for title in re.findall(r"^#+ (.*)", found.read_text(), re.M)
            }
            assert section in slugs, target


def test_every_page_is_in_the_index():
    index = (ROOT / "docs/runbooks/README.md").read_text()
    pages = [page.name for page in (ROOT / "docs/runbooks").glob("*.md") if page.name != "README.md"]
    assert [page for page in pages if f"]({page})" not in index] == []


def test_values_that_are_named_exist():
    """`a.b` in the runbooks and the README is a value of the chart."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    for page in PAGES[:-2] + [CHART / "README.md"]:
        for path in re.findall(r"`([a-z][A-Za-z]+(?:\.[A-Za-z_]+)+)`", page.read_text()):
            node = schema
            first = path.split(".")[0]
            if first not in schema["properties"]:
                continue
            for step in path.split("."):
                properties = node.get("properties", {})
                assert step in properties or node.get("additionalProperties") not in (False, None), f"{page.name}: {path}"
                node = properties.get(step, {"additionalProperties": True})

"""Commands and statements of the runbooks exist."""

import json
import re
import subprocess

import pytest

from chart import CASES, CHART, ROOT, case, objects
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


def shell(page):
    """The commands in a page's blocks of shell, without their line breaks."""
    return [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]


def test_helm_waits_longer_than_a_migration_may_take():
    """And the job's tries, each as long as src/db/migrate.rs goes on, fit into its deadline."""
    code = (ROOT / "src/db/migrate.rs").read_text()
    lock, pause, tries = (
        int(re.search(pattern, code)[1])
        for pattern in (r"LOCK_TIMEOUT.*from_millis\((\d+)\)", r"LOCK_PAUSE.*from_secs\((\d+)\)", r"MAX_LOCK_TRIES: u32 = (\d+)")
    )
    job = objects(case("layer7"))["Job", "chat-migrate"]["spec"]
    assert (job["backoffLimit"] + 1) * tries * (lock / 1000 + pause) < job["activeDeadlineSeconds"]
    texts = [(page.name, line) for page in PAGES for line in [*shell(page), *re.findall(r"`(helm [^`]*)`", page.read_text())]]
    migrating = [(name, line) for name, line in texts if re.match(r"helm (install|upgrade) ", line)]
    assert len(migrating) >= 5
    for name, line in migrating:
        minutes = re.search(r"--timeout (\d+)m", line)
        assert minutes and int(minutes[1]) * 60 > job["activeDeadlineSeconds"], f"{name}: {line}"


def commands(page):
    """The commands in a page's blocks of shell, and those within its sentences."""
    return [*shell(page), *(re.sub(r"\s+", " ", text) for text in re.findall(r"`((?:kubectl|helm) [^`]*)`", page.read_text()))]


def test_every_command_names_its_namespace():
    """A command of two words is named in a sentence and not to be run as it is."""
    found = []
    for page in PAGES:
        found += [
            (page.name, line)
            for line in commands(page)
            if re.match(r"(kubectl|helm) ", line) and len(line.split()) > 2 and "create namespace" not in line
        ]
    assert len(found) >= 30
    assert [(name, line) for name, line in found if "--namespace messaging" not in line] == []


def selects(selector, labels):
    """Whether a selector of kubectl selects labels."""
    for key, is_set, values, value in re.findall(r"([\w./-]+)(?:( in )\(([^)]*)\)|=([\w-]+))", selector):
        if labels.get(key) not in (values.split(",") if is_set else [value]):
            return False
    return True


def test_a_restore_ends_every_pod_that_writes():
    commands = shell(ROOT / "docs/runbooks/restore.md")
    scale = next(line for line in commands if "scale deployment --selector" in line and "--replicas 0" in line)
    gone = next(line for line in commands if "wait pod --for delete" in line)
    ended, awaited = (re.search(r"--selector '?([^ ']+(?: in \([^)]*\))?)", line)[1] for line in (scale, gone))
    for name in CASES:
        found = objects(case(name))
        for (kind, owner), document in found.items():
            if kind == "Deployment":
                assert selects(ended, document["metadata"]["labels"]), f"{name}: {owner}"
                assert selects(awaited, document["spec"]["template"]["metadata"]["labels"]), f"{name}: {owner}"
            if kind == "ScaledObject":
                # KEDA makes its HPA again, and starts a deployment that is below the minimum.
                paused = [line for line in commands if f"annotate scaledobject {owner} autoscaling.keda.sh/paused-replicas" in line]
                assert [line[-2:] for line in paused] == ["=0", "s-"]
            if kind in ("HorizontalPodAutoscaler", "ScaledObject"):
                # Helm sets no number of nodes then.
                assert any(re.search(r"scale deployment/chat --replicas [1-9]", line) for line in commands)


def test_a_new_serving_role_has_the_time_outs_of_the_old_one():
    def settings(page, role):
        return re.findall(rf"^alter role {role} set (.*);", page.read_text(), re.M)

    first = settings(CHART / "README.md", "blindpipe_serve")
    assert len(first) == 4 and settings(ROOT / "docs/runbooks/rotate-keys.md", "blindpipe_serve_b") == first


def test_lines_of_the_log_that_are_named_exist():
    """Plain words in a sentence about the log are a message or a remedy of the server."""
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.rs"))
    quoted = set()
    for page in PAGES:
        for sentence in re.split(r"(?<=[.;:])\s", page.read_text().replace("\n", " ")):
            if re.search(r"\blog\b|\blogs\b", sentence):
                quoted |= set(re.findall(r"`((?!kubectl )[a-z]+(?: [a-z]+)+)`", sentence))
    assert len(quoted) >= 4, quoted
    assert [text for text in quoted if f'"{text}"' not in sources] == []


def test_every_table_about_a_user_is_in_the_copy_or_left_out_with_a_reason():
    page = (ROOT / "docs/runbooks/user-data.md").read_text().split("## The end")[0]
    named = set(re.findall(r"\b(?:from|join) (\w+)", page)) | set(re.findall(r"`(\w+)`", page.split("Left out")[1]))
    tables = re.findall(r"^create table (\w+) \((.*?)^\)", (ROOT / "sql/schema.sql").read_text(), re.M | re.S)
    assert len(tables) > 35
    about = r"^    (\w*(user|owner|principal|sender|subject|uploader|writer|agent)_id|created_by|email|payload|credential_id) "
    assert [name for name, columns in tables if re.search(about, columns, re.M) and name not in named] == []


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

"""docs/metrics.md and docs/logs.md have every series, line and field of the sources."""

import os
import re

from chart import ROOT

METRICS, LOGS = ROOT / "docs/metrics.md", ROOT / "docs/logs.md"
KINDS = {"Counter": "counter", "Gauge": "gauge", "Seconds": "seconds", "Size": "size"}
STRING = r'"((?:[^"\\]|\\[\s\S])*)"'


def text_of(literal):
    """The text of a string of Rust, whose line may go on after a backslash."""
    return re.sub(r"\\\n\s*", "", literal).replace('\\"', '"')


def series():
    """(name, kind, help) of every series, in order."""
    table = (ROOT / "src/metrics/series.rs").read_text().split("SERIES: &")[1]
    rows = re.findall(rf"\(\s*{STRING},\s*Kind::(\w+),\s*{STRING},?\s*\)", table)
    return [(name, KINDS[kind], text_of(text)) for name, kind, text in rows]


def labels():
    """The labels of each series, from the functions that record it."""
    found = {name: [] for name, _, _ in series()}
    code = (ROOT / "src/metrics/mod.rs").read_text()
    for name, rest in re.findall(r'"(\w+)"([^;]*);', code):
        if name in found:
            found[name] += [label for label in re.findall(r'\("(\w+)", |"(\w+)" => ', rest) if label not in found[name]]
    return {name: list(dict.fromkeys(a or b for a, b in pairs)) for name, pairs in found.items()}


def known_values():
    """The values of the labels that have no others, by series and label."""
    table = (ROOT / "src/metrics/labels.rs").read_text().split("KNOWN_COUNTERS: &")[1].split("\n];")[0]
    rows = re.findall(rf"\(\s*{STRING},\s*{STRING},\s*&\[(.*?)\],?\s*\)", table, re.S)
    return {(name, label): re.findall(STRING, values) for name, label, values in rows}


def table_of_series():
    known, of = known_values(), labels()
    lines = ["| series | kind | labels | meaning |", "|---|---|---|---|"]
    for name, kind, text in sorted(series()):
        values = {label: ", ".join(f"`{value}`" for value in known.get((name, label), [])) for label in of[name]}
        shown = "; ".join(f"`{label}`" + (f": {some}" if some else "") for label, some in values.items())
        lines.append(f"| `{name}` | {kind} | {shown} | {text} |")
    return "\n".join(lines) + "\n"


def test_every_series_is_in_the_reference():
    before, after = "<!-- series -->\n", "<!-- end of series -->\n"
    start, rest = METRICS.read_text().split(before)
    _, end = rest.split(after)
    if os.environ.get("UPDATE_GOLDEN"):
        METRICS.write_text(start + before + table_of_series() + after + end)
    assert METRICS.read_text() == start + before + table_of_series() + after + end, "UPDATE_GOLDEN=1 make helm renews it"


def test_every_label_is_explained():
    text = METRICS.read_text()
    explained = set(re.findall(r"^\| `(\w+)` \| ", text.split("## Labels")[1], re.M))
    assert explained == {label for some in labels().values() for label in some}


def test_the_reference_found_what_is_recorded():
    """Every row of the table of series was read, and every label has a name of its own."""
    rows = (ROOT / "src/metrics/series.rs").read_text().split("SERIES: &")[1].count("Kind::")
    assert len(series()) == rows > 60
    assert labels()["http_requests_total"] == ["route", "method", "status"]
    assert known_values()["mails_total", "outcome"] == ["sent", "failed"]


def sources():
    """The code of the server and of the crate that calls users' addresses for it."""
    for path in [*(ROOT / "src").rglob("*.rs"), *(ROOT / "crates/egress/src").rglob("*.rs")]:
        yield path.read_text().split("#[cfg(test)]\nmod tests {")[0]


def arguments(call):
    """The arguments of a macro, from behind its parenthesis."""
    found, text, depth, quoted = [], "", 0, False
    for at, letter in enumerate(call):
        if letter == '"' and call[at - 1] != "\\":
            quoted = not quoted
        if not quoted:
            depth += (letter in "([{") - (letter in ")]}")
            if depth < 0:
                break
            if letter == "," and depth == 0:
                found, text = [*found, text.strip()], ""
                continue
        text += letter
    return [*found, text.strip()] if text.strip() else found


def lines_of_the_log():
    """(level, message, fields) of every line that the server writes by itself."""
    for text in sources():
        for found in re.finditer(r"\btracing::(error|warn|info|debug)!\(", text):
            given = arguments(text[found.end() :])
            messages = [text_of(argument[1:-1]) for argument in given if argument.startswith('"')]
            fields = {re.match(r"[%?]?([a-z_.]+)", argument)[1] for argument in given if not argument.startswith('"')}
            assert len(messages) == 1, given
            yield found[1].upper(), messages[0], fields


def rows(page, title):
    """The cells of the first table below a title."""
    lines = page.read_text().split(f"## {title}\n")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| `")]


def words(cell):
    return set(re.findall(r"`([^`]+)`", cell))


def test_every_line_of_the_log_is_in_the_reference():
    named = {(level, text.strip("`")) for text, level, *_ in rows(LOGS, "Lines")}
    # The backplane's line has one of two texts.
    texts = {text for source in sources() for text in re.findall(rf"\.mark_unhealthy\({STRING}\)", source)}
    written = {
        (level, text) for level, message, _ in lines_of_the_log() if level != "DEBUG"
        for text in (texts if message == "{why}" else [message])
    }
    assert named == written and len(written) > 25


def test_every_field_of_the_log_is_in_the_reference():
    of_all = {"timestamp", "level", "message", "target", "span"}
    fields = {field for _, _, fields in lines_of_the_log() for field in fields}
    assert {name for cell, *_ in rows(LOGS, "Fields") for name in words(cell)} == fields | of_all


def test_every_operation_of_the_log_is_in_the_reference():
    """The names of what failed, beside the remedy that the line has."""
    written = set()
    for source in sources():
        written |= set(re.findall(rf"\blog_in\(\s*{STRING},", source))
        written |= set(re.findall(rf"operation = {STRING}", source))
    named = {name for cell, *_ in rows(LOGS, "Operations") for name in words(cell)}
    assert named == written and len(written) > 40

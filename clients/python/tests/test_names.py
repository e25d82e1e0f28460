"""`clients/README.md` and `ROUTES.md` name the API of three languages, the document of `bp1` tests."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parents[2]
MODULES = ["blindpipe", *(f"blindpipe.{name}" for name in ("agent", "client", "e2ee", "testing"))]
ENTRIES = ["index.ts", "agent/index.ts", "e2ee/index.ts", "testing/index.ts"]
LANGUAGES = ["Python", "TypeScript", "Rust"]


def _rows(text: str, columns: int) -> Iterator[list[str]]:
    """The rows of all tables with so many columns, without their heads."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == columns and "Python" not in cells:
            yield cells


def _table(name: str) -> list[list[str]]:
    return list(_rows((CLIENTS / name).read_text(), 4))


def _names(language: str) -> list[str]:
    at = LANGUAGES.index(language) + 1
    rows = [row for name in ("README.md", "ROUTES.md") for row in _table(name)]
    for row in rows:
        assert all(re.fullmatch(r"–|`[\w.:]+`(, `[\w.:]+`)*", cell) for cell in row[1:]), row
    return sorted({name for row in rows for name in re.findall(r"`([^`]+)`", row[at])})


def test_the_tables_are_read() -> None:
    assert len(_names("Python")) > 100
    assert len(_names("TypeScript")) > 100
    assert len(_names("Rust")) > 100


def test_each_route_has_a_row_and_its_calls() -> None:
    document = json.loads((CLIENTS.parent / "docs/api/openapi.json").read_text())
    methods = {"get", "post", "put", "patch", "delete"}
    routes = [
        f"{method.upper()} {path}"
        for path, operations in document["paths"].items()
        for method in operations
        if method in methods
    ]
    table = _table("ROUTES.md")
    assert not set(routes) - {row[0] for row in table}
    assert all("–" not in row[1:] for row in table)


def _has_member(owner: object, name: str) -> bool:
    if hasattr(owner, name):
        return True
    assert inspect.isclass(owner)
    # Attributes of instances: of data classes and typed dictionaries, and those set at the start.
    declared = any(name in vars(base).get("__annotations__", {}) for base in owner.__mro__)
    return declared or bool(re.search(rf"\bself\.{name}(: .+)? = ", inspect.getsource(owner)))


@pytest.mark.parametrize("name", _names("Python"))
def test_a_name_is_there_in_python(name: str) -> None:
    first, *rest = name.split(".")
    modules = [importlib.import_module(module) for module in MODULES]
    found = [vars(module)[first] for module in modules if first in vars(module)]
    assert found, first
    public = [module for module in modules if first in getattr(module, "__all__", vars(module))]
    assert public or inspect.ismodule(found[0]), f"{first} is not exported"
    for member in rest:
        assert _has_member(found[0], member), name


@cache
def _typescript_exports() -> dict[str, str]:
    """All that the package's entries export, with the source that declares it."""
    source = CLIENTS / "typescript/src"
    texts = {path: path.read_text() for path in source.rglob("*.ts")}
    declared = {path: _declarations(text) for path, text in texts.items()}
    exported: dict[str, str] = {}
    for entry in (source / each for each in ENTRIES):
        exported |= declared[entry]
        for names, at in re.findall(
            r"export (?:type )?(\*|\{[^}]*\}) from \"([^\"]+)\"", texts[entry]
        ):
            there = declared[(entry.parent / at).resolve().with_suffix(".ts")]
            chosen = set(re.findall(r"\b(?!type\b)(\w+)", names)) or set(there)
            exported |= {name: text for name, text in there.items() if name in chosen}
    return exported


def _declarations(text: str) -> dict[str, str]:
    """What a file declares and exports: names, and the text to the end of the declaration."""
    kinds = r"(?:abstract )?(?:async )?(?:class|interface|function|const|type)"
    starts = re.finditer(rf"^export {kinds} (\w+)", text, re.MULTILINE)
    return {
        start[1]: text[start.start() :].split("\n}\n")[0].split("\nexport ")[0] for start in starts
    }


@pytest.mark.parametrize("name", _names("TypeScript"))
def test_a_name_is_there_in_typescript(name: str) -> None:
    first, *rest = name.split(".")
    text = _typescript_exports().get(first)
    assert text is not None, f"{first} is not exported"
    prefix = r"^ {2}(?:  )?(?:readonly |static |async |get |\*)*"
    for member in rest:
        assert re.search(rf"{prefix}{member}[?]?[(:<]", text, re.MULTILINE), name


@cache
def _rust() -> str:
    folders = ("client", "e2ee")
    paths = [path for each in folders for path in (CLIENTS / "rust" / each / "src").rglob("*.rs")]
    return "\n".join(path.read_text() for path in paths)


def _rust_bodies(name: str) -> str:
    """The definitions of a type, and its own `impl` blocks."""
    begins = rf"^(?:pub (?:struct|enum|trait)|impl(?:<[^>]*>)?) {name}\b[^;{{]*\{{"
    found = re.finditer(begins, _rust(), re.MULTILINE)
    return "\n".join(_rust()[each.start() :].split("\n}\n")[0] for each in found)


@pytest.mark.parametrize("name", _names("Rust"))
def test_a_name_is_there_in_rust(name: str) -> None:
    first, *rest = name.split("::")
    function = r"pub (?:const |async )*fn"
    if first[0].islower():
        assert re.search(rf"^pub mod {first};", _rust(), re.MULTILINE), name
        assert re.search(rf"^{function} {rest[0]}\b", _rust(), re.MULTILINE), name
        return
    assert re.search(rf"^pub (struct|enum|trait) {first}\b", _rust(), re.MULTILINE), name
    bodies = _rust_bodies(first)
    for member in rest:
        # A method, a field, or a variant.
        item = rf"^    (?:{function} {member}\b|pub {member}:|{member}(?:,|\(| \{{))"
        assert re.search(item, bodies, re.MULTILINE), name


def _tests(language: str) -> Iterator[tuple[str, str]]:
    """The tests that the second table of `docs/encryption.md` names: a file, and a name."""
    document = (CLIENTS.parent / "docs/encryption.md").read_text()
    section = document.split("## Promises, test by test")[1].split("\n## ")[0]
    at = ["Rust", "Python", "TypeScript"].index(language) + 2
    for row in _rows(section, 5):
        found = re.findall(r"`([\w-]+)`: ((?:`[^`]+`(?:, (?!`[\w-]+`: ))?)+)", row[at])
        assert found or row[at] == "–", row[at]
        for file, names in found:
            yield from ((file, name) for name in re.findall(r"`([^`]+)`", names))


def _is_named(test: str, by: str) -> bool:
    parts = by.replace(" …", "…").split("…")
    return re.fullmatch(".*".join(map(re.escape, parts)), test) is not None


TESTS = {
    "Python": ("python/tests/test_{}.py", r"^(?:async )?def test_(\w+)\("),
    "TypeScript": ("typescript/test/{}.test.ts", r"^\s*test\(\s*[\"`]([^\"`]+)[\"`]"),
    "Rust": ("rust/**/{}.rs", r"^\s*(?:async )?fn (\w+)\(\)"),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_of_promises_names_tests_that_are_there(language: str) -> None:
    where, pattern = TESTS[language]
    named = list(_tests(language))
    assert len(named) >= 15
    for file, name in named:
        texts = [path.read_text() for path in CLIENTS.glob(where.format(file))]
        tests = [each for text in texts for each in re.findall(pattern, text, re.MULTILINE)]
        assert sum(_is_named(test, name) for test in tests) == 1, f"{file}: {name}"

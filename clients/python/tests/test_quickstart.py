"""Every command of docs/quickstart.md, as a reader would type it."""

from __future__ import annotations

import os
from concurrent.futures import Future

import pytest
from live import ROOT
from quickstart import LANGUAGES, TEXT, TOOLS, blocks, section, sh


def test_the_service_is_started_by_make() -> None:
    (command,) = blocks(section(TEXT, "A service", "##"), "sh")
    shown = sh(command.replace("make", "make --dry-run CARGO=cargo"), ROOT, {**os.environ})
    assert "devcluster --no-demo" in shown


@pytest.mark.parametrize("language", TOOLS)
def test_every_command(language: str, guides: dict[str, Future[tuple[str, str]]]) -> None:
    """The commands have run beside the other tests, since they mostly wait for installers."""
    if language not in LANGUAGES:
        pytest.skip(f"{TOOLS[language]} is not there")
    printed, promised = guides[language].result()
    assert printed == promised

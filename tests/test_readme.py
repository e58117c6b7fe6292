"""The README says what is true: its code runs, its table is the registry's, links lead on."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_examples_run(capsys):
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    namespace = {}
    for example in examples:
        exec(compile(example, "README.md", "exec"), namespace)
    assert namespace["out"].shape == (1, 8, 100, 64)
    assert namespace["step"].shape == (1, 8, 1, 64)
    assert "lln_diag" in capsys.readouterr().out


def test_the_first_example_has_ten_lines():
    first = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    assert len([line for line in first.splitlines() if line.strip()]) <= 10


def test_the_two_commands_come_first():
    assert re.search(r"\A# .*?\n\n```sh\nmake test.*\nmake demo", README)


def test_the_table_is_the_registrys():
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from lln.cli.app import app

    printed = CliRunner().invoke(app, ["list", "--markdown"]).stdout
    assert "| `lln_diag` |" in printed
    table = README.split("<!-- mechanisms -->")[1].split("<!-- /mechanisms -->")[0]
    assert table.strip() == printed.strip(), "update it with `lln list --markdown`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_method_names_what_exists():
    import importlib

    names = re.findall(r"`(lln(?:\.\w+)+)", (ROOT / "docs" / "method.md").read_text())
    assert len(names) > 10
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name

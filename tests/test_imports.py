"""Imports go one way, and `import lln` needs torch alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lln

PACKAGE = Path(lln.__file__).parent

# A part may import itself and the parts that it names.
ALLOWED = {
    "files": set(),
    "memory": set(),
    "functional": set(),
    "matching": {"files", "functional"},
    "registry": {"functional"},
    "attention": {"functional", "matching", "registry"},
    "instruments": {"files", "functional", "matching", "registry", "attention"},
    "models": {"functional", "matching", "registry", "attention"},
    "bench": {
        "files",
        "memory",
        "functional",
        "matching",
        "registry",
        "attention",
        "instruments",
        "models",
    },
    "report": {
        "files",
        "bench",  # for the style of figures
        "functional",
        "matching",
        "registry",
        "attention",
        "instruments",
        "models",
        "hf",
        "integrations",
    },
    "data": {"files"},
    "integrations": {
        "files",
        "functional",
        "matching",
        "registry",
        "attention",
        "instruments",
    },
    "hf": {"integrations"},
    "train": {
        "files",
        "memory",
        "registry",
        "attention",
        "instruments",
        "models",
        "data",
        "bench",  # for what a measurement says of its machine
    },
    "cli": {
        "files",
        "functional",
        "matching",
        "registry",
        "attention",
        "instruments",
        "data",
        "bench",
        "report",
        "integrations",
        "train",
    },
}
# These parts sit above the attention and may use the names of the package itself.
MAY_IMPORT_PACKAGE = {"bench", "cli"}
MODULES = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]


def imports(path):
    """The names of lln's parts that a file imports, '' for the package itself."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "lln":
            names = [f"lln.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [node.module]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "lln":
                yield name.split(".")[1] if "." in name else ""


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    allowed = ALLOWED[part] | {part} | ({""} if part in MAY_IMPORT_PACKAGE else set())
    assert set(imports(path)) <= allowed


def test_every_part_is_listed():
    parts = {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in MODULES}
    assert parts == set(ALLOWED)


def test_import_needs_torch_alone():
    script = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {
            "PIL", "matplotlib", "plotly", "rich", "scipy", "transformers", "typer"
        }:
            raise ModuleNotFoundError(f"refused {name}", name=name)
sys.meta_path.insert(0, Refuse())
import warnings; warnings.simplefilter("ignore")
import torch, lln
q = torch.randn(1, 2, 10, 64)
print(lln.lln_diag_attention(q, q, q).shape, lln.build("softmax", dim=16, heads=2))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_import_leaves_the_compiler_alone():
    """Loading it takes as long as torch itself."""
    script = "import sys, lln; print([m for m in sys.modules if m.startswith('torch._dynamo')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_files_stay_short():
    long = {str(p): n for p in MODULES if (n := len(p.read_text().splitlines())) > 300}
    assert not long

import shutil
import subprocess

import pytest

from lln.bench import record


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_of_the_package_is_named(tmp_path, monkeypatch):
    package, results = tmp_path / "src" / "lln", tmp_path / "results"
    for folder in (package, results):
        folder.mkdir(parents=True)
        (folder / "file").write_text("before")
    monkeypatch.setattr(record, "PACKAGE", package)
    assert record.environment()["commit"] is None  # an installed package

    def git(*arguments):
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        subprocess.run(("git", "-C", str(tmp_path), *who, *arguments), check=True)

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message=x")
    clean = record.environment()["commit"]
    assert clean
    (results / "file").write_text("after")  # what a benchmark writes is no change of the package
    assert record.environment()["commit"] == clean
    (package / "file").write_text("after")
    assert record.environment()["commit"] == f"{clean}-dirty"

import json

import pytest

from lln import files


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder" / "result.json"
    files.write_json(path, {"σ": 1})
    with pytest.raises(TypeError):
        files.write_json(path, {"σ": object()})

    def half(file):
        file.write_text("half")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        files.write(path, half)
    assert json.loads(path.read_text()) == {"σ": 1}
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "folder"

    def half(folder):
        (folder / "first").write_text("1")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        files.write_folder(path, half)
    assert list(path.parent.iterdir()) == []
    files.write_folder(path, lambda folder: (folder / "first").write_text("1"))
    assert (path / "first").read_text() == "1"
    with pytest.raises(FileExistsError, match="exists already"):
        files.write_folder(path, lambda folder: (folder / "second").write_text("2"))
    assert [p.name for p in path.parent.iterdir()] == ["folder"]
    assert [p.name for p in path.iterdir()] == ["first"]


def test_what_one_process_works_on_is_refused_to_others(tmp_path):
    run = tmp_path / "runs" / "softmax-seed0"
    with files.reserved(run):
        with pytest.raises(BlockingIOError), files.reserved(run):
            pass
        with files.reserved(tmp_path / "runs" / "lln-seed0"):
            pass
    with files.reserved(run):
        pass
    assert not list((tmp_path / "runs").iterdir())

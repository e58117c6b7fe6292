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

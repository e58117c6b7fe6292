import json

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from lln.bench import cases, decode, op
from lln.cli.app import app


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    monkeypatch.setattr(decode, "AT_ONCE", 2)


def test_report(tmp_path):
    setting = op.Setting(
        names=("lln", "lln_diag", "elu"),
        n=(20, 80),
        heads=2,
        head_dim=8,
        threads=1,
        repeats=1,
        passes=("decoding",),
        gate=False,
    )
    advanced = []
    report = op.run(setting, advance=lambda: advanced.append(1))
    assert len(advanced) == setting.steps
    rows = {(row["case"], row["n"]): row for row in report["decoding"]}
    names = ["products", "sdpa", "lln", "lln_diag"]  # elu has no state to go on from
    assert list(rows) == [(name, n) for name in names for n in (20, 80)]
    for (name, n), row in rows.items():
        assert row["decoding"]["median"] > 0
        sdpa, products = (rows[other, n]["decoding"]["median"] for other in ("sdpa", "products"))
        own = row["decoding"]["median"]
        assert row["decoding"]["faster_than_sdpa"] == pytest.approx(sdpa / own)
        assert row["decoding"]["times_products"] == pytest.approx(own / products)
        first = rows[name, 20]["decoding"]["median"]
        assert row["times_shortest"] == pytest.approx(own / first)
        if name != "sdpa":
            assert row["bytes"] == rows[name, 20]["bytes"]
    assert rows["sdpa", 80]["bytes"] == 2 * 2 * 8 * 80 * 4
    assert report["results"] == []
    op.save(report, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"op.json", "op.md"}
    assert json.loads((tmp_path / "op.json").read_text()) == json.loads(json.dumps(report))


@torch.no_grad()
def test_decoders_read_the_text_before(monkeypatch):
    seen = []
    x = cases.inputs(1, 2, 12, 8)
    right = F.scaled_dot_product_attention

    def attend(*arguments, **more):
        seen.append(right(*arguments, **more))
        return seen[-1]

    monkeypatch.setattr(decode.F, "scaled_dot_product_attention", attend)
    softmax = decode._Softmax("sdpa", x, 10)
    for _ in range(2):  # it forgets what it read
        softmax.some_tokens()
    keys, values = (torch.cat([part[:, :, :10], part[:, :, :2]], 2) for part in (x.k, x.v))
    expected = right(x.q[:, :, 1:2], keys, values)
    for found in (seen[1], seen[3]):
        torch.testing.assert_close(found, expected)


def test_command(tmp_path):
    sizes = ["--n", "10,20", "--heads", "1", "--threads", "1", "--repeats", "1", "--attn", "lln"]
    arguments = ["bench", "op", "--passes", "decoding", *sizes, "--no-gate"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "one token after N others" in result.stdout

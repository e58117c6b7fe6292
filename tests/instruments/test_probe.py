"""`record` measures what the attention reads, changes nothing, and leaves nothing behind."""

import json
import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lln
from lln.instruments import FactoredMatrix, entropy, matrix_of, record, spectral_gap, temperature
from lln.registry import entry

MEASURES = ("temperature", "temperature_paper", "entropy", "entropy_error", "gap")
DIM, HEADS, N = 32, 4, 20
CORES = [
    name
    for name in lln.available()
    if entry(name).kind == "core" and entry(name).cls.linear_in_values
]


class Encoder(nn.Module):
    def __init__(self, *names, checkpointed=False, **options):
        super().__init__()
        self.layers = nn.ModuleList(
            lln.build(name, dim=DIM, heads=HEADS, max_len=N, **options) for name in names
        )
        self.dropout = nn.Dropout(0.2)
        self.checkpointed = checkpointed

    def forward(self, x, key_mask=None, **masks):
        for layer in self.layers:
            if self.checkpointed:
                mixed = checkpoint(layer, x, key_mask=key_mask, use_reentrant=False, **masks)
            else:
                mixed = layer(x, key_mask=key_mask, **masks)
            x = x + self.dropout(mixed)
        return x


@pytest.fixture
def x():
    return 2 * torch.randn(3, N, DIM)


@pytest.fixture
def key_mask():
    return torch.arange(N) < torch.tensor([[N], [7], [1]])


def heads_of(layer, x):
    """The queries and keys of a layer."""
    split = (f(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for f in (layer.query, layer.key))
    return tuple(part.detach() for part in split)


def column(recording, measure, layer=0):
    return torch.tensor([row[measure] for row in recording.rows if row["layer"] == layer])


def hooks(model):
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


def test_a_row_for_each_step_layer_and_head(x):
    model = Encoder("lln", "softmax").eval()
    with record(model) as recording:
        model(x)
        model(x)
    rows = recording.rows
    places = [(row["step"], row["layer"], row["head"]) for row in rows]
    assert places == [(s, i, h) for s in range(2) for i in range(2) for h in range(HEADS)]
    assert {row["name"] for row in rows} == {"layers.0.core", "layers.1.core"}
    assert all(row["n"] == N for row in rows)
    assert all(math.isfinite(row[measure]) for row in rows for measure in MEASURES)
    assert [("alpha" in row, "beta" in row) for row in rows[: 2 * HEADS]] == (
        [(True, True)] * HEADS + [(False, False)] * HEADS
    )
    assert isinstance(recording.captures, dict)
    assert not recording.captures


@pytest.mark.parametrize("causal", [False, True])
def test_numbers_are_those_of_the_measures(x, causal):
    model = Encoder("softmax").eval()
    key_mask = torch.arange(N) < torch.tensor([[N], [17], [7]])
    with record(model, rows=5, keep=True) as recording:
        model(x, key_mask, causal=causal)
    core, (q, k) = model.layers[0].core, heads_of(model.layers[0], x)
    matrix = matrix_of(core, q, k, key_mask=key_mask, causal=causal)
    bits = entropy(matrix, rows=5)
    heat = temperature(core, q, k, key_mask=key_mask, causal=causal, rows=5)
    torch.testing.assert_close(column(recording, "entropy"), bits.bits.mean(0))
    error = bits.standard_error.square().sum(0).sqrt() / 3
    torch.testing.assert_close(column(recording, "entropy_error"), error)
    torch.testing.assert_close(column(recording, "temperature"), heat.exact.mean(0))
    torch.testing.assert_close(column(recording, "temperature_paper"), heat.paper.mean(0))
    gap = spectral_gap(matrix).gap.mean(0).float()
    torch.testing.assert_close(column(recording, "gap"), gap)
    assert recording.rows[0]["n"] == round((N + 17 + 7) / 3)
    capture = recording.captures[0]
    assert (capture.name, capture.core, capture.causal) == ("layers.0.core", core, causal)
    torch.testing.assert_close(capture.q, q, rtol=0, atol=0)
    assert torch.equal(capture.key_mask, key_mask)
    assert capture.matrix.shape == (3, HEADS, N, N)


def test_lln_is_measured_through_its_factors(x, key_mask):
    model = Encoder("lln").eval()
    with record(model, keep=True) as recording:
        model(x, key_mask)
    assert isinstance(recording.captures[0].matrix, FactoredMatrix)
    core, (q, k) = model.layers[0].core, heads_of(model.layers[0], x)
    alpha, beta, _ = core.matcher(q, k, key_mask=key_mask)
    torch.testing.assert_close(column(recording, "alpha"), alpha.mean(0))
    torch.testing.assert_close(column(recording, "beta"), beta.mean(0))


@pytest.mark.parametrize("name", CORES)
def test_every_core_in_half_precision_with_padding(name, x, key_mask):
    model = Encoder(name).eval()
    with record(model) as recording, torch.autocast("cpu", torch.bfloat16):
        model(x, key_mask)
    assert len(recording.rows) == HEADS
    for row in recording.rows:
        assert (row["entropy"] is not None) == entry(name).row_stochastic
        json.dumps(row, allow_nan=False)


def test_padding_and_packing_change_nothing(x, key_mask):
    model = Encoder("lln_diag").eval()
    rows = []
    for i, n in enumerate((N, 7, 1)):
        with record(model) as alone:
            model(x[i : i + 1, :n])
        rows.append(alone)
    with record(model) as padded:
        model(x, key_mask)
    packed_x = torch.cat([x[0], x[1, :7], x[2, :1]]).unsqueeze(0)
    with record(model) as packed:
        model(packed_x, cu_seqlens=torch.tensor([0, N, N + 7, N + 8]))
    for measure in ("entropy", "gap", "alpha"):
        expected = torch.stack([column(alone, measure) for alone in rows]).mean(0)
        torch.testing.assert_close(column(padded, measure), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(column(packed, measure), expected, rtol=1e-4, atol=1e-5)
    # The sequence of one token has no temperature.
    assert rows[2].rows[0]["temperature"] is None
    expected = torch.stack([column(alone, "temperature") for alone in rows[:2]]).mean(0)
    torch.testing.assert_close(column(padded, "temperature"), expected, rtol=1e-4, atol=1e-5)


def test_cross_attention_has_no_gap():
    core = lln.build_core("softmax", heads=2, head_dim=8)
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 9, 8)
    with record(core) as recording:
        core(q, k, v=k)
    assert [row["gap"] for row in recording.rows] == [None, None]
    expected = entropy(matrix_of(core, q, k)).bits[0]
    torch.testing.assert_close(column(recording, "entropy"), expected)


def test_outputs_are_the_same_before_inside_and_after(x, key_mask):
    model = Encoder("lln_diag", "longformer", "softmax").train()

    def run():
        torch.manual_seed(3)
        out = model(x, key_mask)
        model.zero_grad()
        out.square().sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters())]

    before = run()
    with record(model, keep=True):
        inside = run()
    after = run()
    for one, two, three in zip(before, inside, after, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
    assert hooks(model) == 0


def test_running_averages_do_not_count_a_measurement(x):
    matching = lln.matching.Matching(statistics="running")
    seen, unseen = (Encoder("lln", matching=matching).train() for _ in range(2))
    unseen.load_state_dict(seen.state_dict())
    for step in range(3):
        torch.manual_seed(step)
        unseen(x + step)
        with record(seen):
            torch.manual_seed(step)
            seen(x + step)
    for name, value in unseen.state_dict().items():
        assert torch.equal(value, seen.state_dict()[name]), name


def test_every_and_layers_choose(x):
    model = Encoder("lln", "elu", "softmax").eval()
    with record(model, every=2, layers=[0, 2]) as recording:
        for _ in range(4):
            model(x)
    assert {(row["step"], row["layer"]) for row in recording.rows} == {
        (0, 0),
        (0, 2),
        (2, 0),
        (2, 2),
    }


def test_checkpointing_is_recorded_once(x):
    model = Encoder("lln", "softmax", checkpointed=True)
    with record(model) as recording:
        for _ in range(2):
            model(x.requires_grad_()).sum().backward()
    assert len(recording.rows) == 2 * 2 * HEADS
    assert [row["step"] for row in recording.rows] == [0] * 2 * HEADS + [1] * 2 * HEADS


def test_no_graph_breaks_afterwards_and_compiled_models_are_seen(x):
    model = Encoder("lln_diag", "softmax").eval()
    with record(model):
        expected = model(x)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), expected)
    with record(compiled) as recording:
        torch.testing.assert_close(compiled(x), expected)
    assert len(recording.rows) == 2 * HEADS
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["lln", "softmax"])
def test_autocast_does_not_lower_what_is_measured(name, x):
    model = Encoder(name).eval()
    with record(model, keep=True) as recording, torch.autocast("cpu", torch.bfloat16):
        model(x)
    capture = recording.captures[0]
    expected = entropy(matrix_of(capture.core, capture.q, capture.k)).bits.mean(0)
    torch.testing.assert_close(column(recording, "entropy"), expected, rtol=1e-6, atol=0)


def test_inference_mode(x):
    model = Encoder("lln", "longformer").eval()
    with record(model) as recording, torch.inference_mode():
        model(x)
    assert len(recording.rows) == 2 * HEADS


def test_saved_rows_are_json_lines(x, tmp_path):
    model = Encoder("lln").eval()
    with record(model) as recording:
        model(x[:, :1])
    recording.save(tmp_path / "new" / "rows.jsonl")
    lines = (tmp_path / "new" / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == recording.rows
    assert recording.to_dict() == {"rows": recording.rows, "skipped": {}}


@pytest.mark.parametrize("what", ["weights", "input"])
def test_nan_names_the_layer(x, key_mask, what):
    model = Encoder("lln", "softmax").eval()
    x = x.masked_fill(~key_mask[..., None], math.nan)  # in padding it is of no matter
    with record(model):
        model(x, key_mask)
    if what == "weights":
        model.layers[1].query.weight.data[0, 0] = math.nan
    else:
        x[1, 3] = math.nan
    i = 1 if what == "weights" else 0
    match = rf"layer {i} \(layers\.{i}\.core\) are not finite"
    with pytest.raises(ValueError, match=match), record(model):
        model(x, key_mask)
    assert hooks(model) == 0


def test_refusals(x):
    model = Encoder("lln", "softmax").eval()
    with pytest.raises(ValueError, match="every must be a positive"), record(model, every=0):
        pass
    with pytest.raises(ValueError, match="rows must be a positive"), record(model, rows=0):
        pass
    with pytest.raises(ValueError, match="no forward pass of Encoder ran"), record(model):
        pass
    with pytest.raises(ValueError, match=r"layers 0 to 1, not \{7\}"), record(model, layers=[7]):
        model(x)
    with pytest.raises(ValueError, match="no real token"), record(model):
        model(x, torch.zeros(3, N, dtype=torch.bool))
    model = Encoder("transformer_ls").eval()
    with pytest.raises(ValueError, match=r"layers\.0\.core: transformer_ls is not"), record(model):
        model(x)
    mixers = nn.Sequential(lln.build("gau", dim=DIM, heads=HEADS))
    with pytest.raises(ValueError, match="Sequential has no attention core"), record(mixers):
        mixers(x)

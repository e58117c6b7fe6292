"""Inside torch's layers, where a fast path would compute softmax and never call the module."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import lln
from integrations.torch.modules import BATCH, DIM, HEADS, N, later, padding
from lln.instruments import record

X = torch.randn(BATCH, N, DIM, generator=torch.Generator().manual_seed(0))
LAYERS = 2

nested = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors is in prototype stage",
    "ignore:enable_nested_tensor is True, but self.use_nested_tensor is False",
)


def encoder(attention=None, *, enable_nested_tensor=False, swap="after", **arguments):
    """An encoder of torch; its attention is exchanged before or after the layers are copied."""
    torch.manual_seed(0)
    arguments = {"batch_first": True, "dropout": 0.0, **arguments}
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 16, **arguments)
    if attention and swap == "before":
        layer.self_attn = lln.MultiheadAttention.from_torch(layer.self_attn, attention)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=enable_nested_tensor)
    if attention and swap == "after":
        lln.MultiheadAttention.replace(model, attention)
    return model


@pytest.fixture
def calls(monkeypatch):
    """The names of what attends: cores of ours, and the kernels of torch's fast paths."""
    seen = []
    for name in ("_transformer_encoder_layer_fwd", "_native_multi_head_attention"):
        kernel = getattr(torch, name)

        def fast(*args, kernel=kernel, **kwargs):
            seen.append("fast path")
            return kernel(*args, **kwargs)

        monkeypatch.setattr(torch, name, fast)
    for cls in (lln.LLNDiagAttention, lln.LLNAttention):
        forward = cls.forward

        def core(self, *args, forward=forward, **kwargs):
            seen.append(self.name)
            return forward(self, *args, **kwargs)

        monkeypatch.setattr(cls, "forward", core)
    return seen


@nested
@pytest.mark.parametrize("kind", [None, "bool", "float"])
@pytest.mark.parametrize("enable_nested_tensor", [False, True])
@pytest.mark.parametrize("swap", ["before", "after"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_no_fast_path_goes_around_it(calls, kind, enable_nested_tensor, swap, norm_first):
    made = {"enable_nested_tensor": enable_nested_tensor, "norm_first": norm_first}
    model, ignored = encoder("lln_diag", swap=swap, **made), padding(kind)
    expected = model.train()(X, src_key_padding_mask=ignored)  # without dropout
    assert calls == ["lln_diag"] * LAYERS
    for context in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        calls.clear()
        with context:
            out = model.eval()(X, src_key_padding_mask=ignored)
        assert calls == ["lln_diag"] * LAYERS
        real = torch.ones(BATCH, N).bool() if kind is None else ~padding("bool")
        assert_close(out[real], expected[real], atol=1e-5, rtol=1e-5)


@nested
@pytest.mark.parametrize("enable_nested_tensor", [False, True])
def test_torchs_own_attention_does_take_the_fast_path(calls, enable_nested_tensor):
    """Or the test above would prove nothing."""
    with torch.no_grad():
        model = encoder(enable_nested_tensor=enable_nested_tensor).eval()
        model(X, src_key_padding_mask=padding("bool"))
        assert calls == ["fast path"] * LAYERS
        model.layers[0].self_attn(X, X, X)
        assert calls == ["fast path"] * (LAYERS + 1)


def test_without_gradients_of_the_weights_neither(calls):
    model = encoder("lln_diag").eval().requires_grad_(False)
    model(X)
    model.layers[0](X)
    model.layers[0].self_attn(X, X, X, need_weights=False)
    assert calls == ["lln_diag"] * (LAYERS + 2)


@nested
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("enable_nested_tensor", [False, True])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_an_encoder_with_softmax_is_torchs(training, enable_nested_tensor, mask):
    made = {"enable_nested_tensor": enable_nested_tensor}
    theirs, ours = (encoder(name, **made).train(training) for name in (None, "softmax"))
    mask = nn.Transformer.generate_square_subsequent_mask(N) if mask else None
    real = ~padding("bool")
    with torch.no_grad():
        expected, found = (
            model(X, mask=mask, src_key_padding_mask=padding("float")) for model in (theirs, ours)
        )
    assert_close(found[real], expected[real], atol=2e-6, rtol=0)


@nested
def test_a_sequence_of_padding_alone_is_finite():
    model = encoder("lln_diag", enable_nested_tensor=True).eval()
    with torch.no_grad():
        out = model(X, src_key_padding_mask=padding("bool", (N, 4, 0)))
    assert out.isfinite().all()


@pytest.mark.parametrize("training", [False, True])
def test_a_transformer_with_softmax_is_torchs(training):
    torch.manual_seed(0)
    theirs = nn.Transformer(DIM, HEADS, 1, 2, 16, dropout=0.0, batch_first=True)
    ours = nn.Transformer(DIM, HEADS, 1, 2, 16, dropout=0.0, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    lln.MultiheadAttention.replace(ours, "softmax")
    mask = nn.Transformer.generate_square_subsequent_mask(N - 3)
    see = {
        "tgt_mask": mask,
        "src_key_padding_mask": padding("float"),
        "memory_key_padding_mask": padding("float"),
    }
    expected, found = (m.train(training)(X, X[:, 3:], **see) for m in (theirs, ours))
    assert_close(found, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("length", [N, N + 5])
@pytest.mark.parametrize(
    "attention", [{"attention": "lln"}, {"attention": "lln_diag", "block_size": 4}]
)
def test_a_decoder_does_not_see_the_future(training, length, attention):
    """Neither does its cross-attention, whose queries know it."""
    layer = nn.TransformerDecoderLayer(DIM, HEADS, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerDecoder(layer, LAYERS).train(training)
    lln.MultiheadAttention.replace(model, **attention)
    memory = torch.randn(BATCH, length, DIM)
    see = {"tgt_mask": later(), "tgt_is_causal": True}
    with lln.matching.calibrating(model), torch.no_grad():
        model(X, memory, **see)
    changed = X.clone()
    changed[:, 6:] += torch.randn(DIM)
    before, after = (model(x, memory, **see) for x in (X, changed))
    assert_close(after[:, :6], before[:, :6], atol=0, rtol=0)
    assert (after[:, 6:] != before[:, 6:]).any()
    short = model(X[:, :6], memory, tgt_mask=later(6, 6), tgt_is_causal=True)
    assert_close(short, before[:, :6], atol=1e-5, rtol=1e-5)


def test_it_learns_within_a_transformer():
    model = lln.MultiheadAttention.replace(encoder(), "hedgehog")
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        loss = (model(X, src_key_padding_mask=padding("bool")) - X.flip(2)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_compiled_encoder():
    torch.compiler.reset()
    model = encoder("lln_diag").eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        ignored = padding("bool")
        expected = model(X, src_key_padding_mask=ignored)
        assert_close(compiled(X, src_key_padding_mask=ignored), expected)


def test_it_can_be_recorded():
    model = encoder("lln_diag").eval()
    with record(model) as recording, torch.no_grad():
        model(X, src_key_padding_mask=padding("bool"))
    assert len(recording.rows) == LAYERS * HEADS
    assert recording.rows[0]["name"] == "layers.0.self_attn.core"


def test_the_example_of_the_documentation_runs(capsys):
    page = (Path(__file__).parents[3] / "docs" / "torch.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        assert len([line for line in example.splitlines() if line.strip()]) <= 10
        exec(compile(example, "docs/torch.md", "exec"), {})
    assert capsys.readouterr().out.startswith("torch.Size([2, 1000, 256])")

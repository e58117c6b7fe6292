"""Models with our attention are exported for any batch and length, and compiled."""

import pytest
import torch
from torch.export import Dim

transformers = pytest.importorskip("transformers", reason="needs the extra `train`")

from integrations.hf.heads import headed  # noqa: E402
from integrations.hf.models import N, build, inputs, run  # noqa: E402

close = torch.testing.assert_close
CORES = {"lln": {}, "lln_diag": {"block_size": 4}}


def one_layer(core):
    """Compilers take their time for each."""
    model = build("roberta", core, **CORES[core])
    model.encoder.layer = model.encoder.layer[:1]
    return model


def some_padding(batch, n):
    arguments = inputs("roberta", batch=batch, n=n)
    mask = torch.ones(batch, n, dtype=torch.long)
    mask[-1, n - 3 :] = 0
    return {**arguments, "attention_mask": mask}


@pytest.mark.parametrize("core", CORES)
@torch.no_grad()
def test_exported_for_any_batch_and_length(core):
    model = one_layer(core)
    shape = {0: Dim("batch"), 1: Dim("n", max=38)}
    example = some_padding(2, 12)
    exported = torch.export.export(model, (), example, dynamic_shapes=dict.fromkeys(example, shape))
    for batch, n in ((2, 12), (3, 7), (1, 21)):
        arguments = some_padding(batch, n)
        found = exported.module()(**arguments).last_hidden_state
        close(found, run(model, "roberta", arguments), rtol=0, atol=1e-5)


@torch.no_grad()
def test_generate_compile_model_forward_fullgraph():
    """Numbers are symbols then, the model's scaling among them."""
    model, ids = headed("llama", "lln"), inputs("llama")["input_ids"]
    model.model.layers = model.model.layers[:1]
    expected = model(ids, use_cache=False).logits
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    growing = transformers.DynamicCache(config=model.config)
    for part in (slice(0, 8), slice(8, 9)):
        found = compiled(ids[:, part], past_key_values=growing).logits
        close(found, expected[:, part], rtol=0, atol=1e-4)
    static = transformers.StaticCache(config=model.config, max_cache_len=N)
    model(ids[:, :8], past_key_values=static)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="how full a static cache is"):
        compiled(ids[:, 8:9], past_key_values=static)


@pytest.mark.slow  # a C++ compiler works for a minute
@pytest.mark.filterwarnings("ignore:.torch._prims_common.check. is deprecated:FutureWarning")
@pytest.mark.parametrize("core", CORES)
def test_compiled_by_inductor_for_training(core):
    model, arguments = one_layer(core), some_padding(2, 12)
    compiled = torch.compile(model, fullgraph=True)
    found, gradients = [], []
    for each in (model, compiled):
        model.zero_grad()
        out = run(each, "roberta", arguments)
        out.square().mean().backward()
        found.append(out)
        # Of the pooler, which the loss does not read, compiled code has gradients of 0.
        gradients.append([w.grad for w in model.encoder.parameters()])
    close(found[1], found[0], rtol=0, atol=1e-5)
    close(gradients[1], gradients[0], rtol=0, atol=1e-6)

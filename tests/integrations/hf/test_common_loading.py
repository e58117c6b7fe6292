"""transformers' generic checks of how a model is saved, loaded and initialised, with our attention.

The rest of `test_common_modeling.py`: checks of `ModelTesterMixin`, each with a test of the same
name.

- test_save_load: saved, loaded and saved again, the same logits to the bit
- test_save_load_keys_to_ignore_on_save: the file has the keys of the state dict
- test_from_pretrained_no_checkpoint: from a state dict in memory
- test_torch_save_load: state dicts and whole models that torch saves
- test_can_use_safetensors: only safetensors, and nothing shared in them twice
- test_load_contiguous_weights: weights that are not contiguous
- test_keep_in_fp32_modules: cores stay in float32
- test_bc_torch_dtype: the model comes in the dtype that was asked for
- test_load_with_mismatched_shapes: another head on the same body
- test_can_load_ignoring_mismatched_shapes: ours are not mismatched
- test_tied_weights_keys: tied weights are tied after loading
- test_load_save_without_tied_weights: and others are not
- test_correct_missing_keys: a body without a head misses its head alone
- test_model_weights_reload_no_missing_tied_weights: a file without weights is refused
- test_can_init_all_missing_weights: without the cores' own weights, too
- test_init_weights_can_init_buffers: memory that was given later gets its first values
- test_all_tensors_are_parameter_or_buffer: and a model in it runs
- test_can_be_initialized_on_meta: no memory for the model's weights
- test_can_load_with_device_context_manager: on the device that was asked for
- test_can_load_with_global_device_set: or set
- test_cannot_load_with_meta_device_context_manager: but not on none
- test_sdpa_can_dispatch_non_composite_models: SDPA if it is asked for by name

Not applicable: tp_plan_matches_params, reverse_loading_mapping, can_load_from_already_mapped_keys,
which are about names of the model's own weights.
"""

import copy
import pickle

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the extra `train`")

from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import lln.hf  # noqa: E402, F401
from integrations.hf.heads import EVERY, HEADS, SOME, assert_covered, headed, logits  # noqa: E402
from integrations.hf.models import inputs  # noqa: E402

every = pytest.mark.parametrize(("name", "core"), EVERY)
some = pytest.mark.parametrize(("name", "core"), SOME)
BODIES = {
    "roberta": transformers.RobertaModel,
    "vit": transformers.ViTModel,
    "llama": transformers.LlamaModel,
}


def test_the_list_is_covered():
    assert_covered(globals())


def cores_of(model):
    return {path: x for path, x in model.state_dict().items() if "attention_core" in path}


@every
def test_save_load(name, core, tmp_path):
    model, arguments = headed(name, core), inputs(name)
    expected = logits(model, arguments)
    for folder in (tmp_path / "first", tmp_path / "second"):
        model.save_pretrained(folder)
        assert (folder / "generation_config.json").exists() == model.can_generate()
        model = HEADS[name][0].from_pretrained(folder)
        assert torch.equal(logits(model, arguments), expected)


@every
def test_save_load_keys_to_ignore_on_save(name, core, tmp_path):
    model = headed(name, core)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        saved = list(file.keys())  # some models save them by older names
    assert len(saved) == len(model.state_dict().keys() - model.all_tied_weights_keys.keys())
    assert sum("attention_core" in key for key in saved) == len(cores_of(model))


@every
def test_from_pretrained_no_checkpoint(name, core):
    model, arguments = headed(name, core), inputs(name)
    again = type(model).from_pretrained(None, config=model.config, state_dict=model.state_dict())
    assert torch.equal(logits(again.eval(), arguments), logits(model, arguments))


@every
def test_torch_save_load(name, core, tmp_path):
    model, arguments = headed(name, core), inputs(name)
    expected = logits(model, arguments)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other = copy.deepcopy(model)
    with torch.no_grad():
        for x in other.state_dict().values():
            x.zero_()
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(logits(other, arguments), expected)
    assert torch.equal(logits(pickle.loads(pickle.dumps(model)), arguments), expected)


@every
def test_can_use_safetensors(name, core, tmp_path):
    model = headed(name, core)
    model.save_pretrained(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for path, x in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[path], x), path


@some
def test_load_contiguous_weights(name, core, tmp_path):
    model = headed(name, core)
    for path, part in model.named_modules():
        if isinstance(part, torch.nn.Linear) and "att" in path:
            part.weight.data = part.weight.data.mT.contiguous().mT
    model.save_pretrained(tmp_path)
    loaded, arguments = type(model).from_pretrained(tmp_path), inputs(name)
    assert all(x.is_contiguous() for x in loaded.state_dict().values())
    torch.testing.assert_close(
        logits(loaded, arguments), logits(model, arguments), rtol=0, atol=1e-5
    )


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_keep_in_fp32_modules(name, core, dtype, tmp_path):
    model = headed(name, core)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=dtype)
    for path, x in cores_of(loaded).items():
        assert torch.equal(x, model.state_dict()[path]), path
    others = {w.dtype for path, w in loaded.named_parameters() if "attention_core" not in path}
    assert others == {dtype}


@some
def test_bc_torch_dtype(name, core, tmp_path):
    headed(name, core).save_pretrained(tmp_path)
    for dtype in ("bfloat16", torch.bfloat16, "auto"):
        loaded = HEADS[name][0].from_pretrained(tmp_path, dtype=dtype)
        expected = torch.float32 if dtype == "auto" else torch.bfloat16
        assert loaded.dtype == expected
        arguments = {
            key: x.to(expected) if x.is_floating_point() else x for key, x in inputs(name).items()
        }
        out = logits(loaded, arguments)
        assert out.dtype == expected
        assert out.isfinite().all()


@every
def test_load_with_mismatched_shapes(name, core, tmp_path):
    model = headed(name, core)
    model.save_pretrained(tmp_path)
    size = {"vit": {"num_labels": 5}}.get(name, {"vocab_size": 60})
    with pytest.raises(RuntimeError, match="mismatch"):
        type(model).from_pretrained(tmp_path, **size)
    loaded, info = type(model).from_pretrained(
        tmp_path, ignore_mismatched_sizes=True, output_loading_info=True, **size
    )
    assert info["mismatched_keys"]
    assert cores_of(loaded).keys() == cores_of(model).keys()
    assert all(torch.equal(x, cores_of(model)[path]) for path, x in cores_of(loaded).items())


@some
def test_can_load_ignoring_mismatched_shapes(name, core, tmp_path):
    model, arguments = headed(name, core), inputs(name)
    model.save_pretrained(tmp_path)
    loaded, info = type(model).from_pretrained(
        tmp_path, ignore_mismatched_sizes=True, output_loading_info=True
    )
    assert not info["mismatched_keys"]
    assert torch.equal(logits(loaded, arguments), logits(model, arguments))


@pytest.mark.parametrize("core", ["lln", "lln_diag", "hedgehog"])
@pytest.mark.parametrize("name", ["roberta", "llama"])
def test_tied_weights_keys(name, core, tmp_path):
    headed(name, core, tie_word_embeddings=True).save_pretrained(tmp_path)
    loaded = HEADS[name][0].from_pretrained(tmp_path)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    assert not any("attention_core" in path for path in loaded.all_tied_weights_keys)


@pytest.mark.parametrize("core", ["lln", "lln_diag", "hedgehog"])
@pytest.mark.parametrize("name", ["roberta", "llama"])
def test_load_save_without_tied_weights(name, core, tmp_path):
    model, arguments = headed(name, core, tie_word_embeddings=False), inputs(name)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.get_output_embeddings().weight is not loaded.get_input_embeddings().weight
    assert torch.equal(logits(loaded, arguments), logits(model, arguments))


@some
def test_correct_missing_keys(name, core, tmp_path):
    headed(name, core, BODIES[name]).save_pretrained(tmp_path)
    loaded, info = HEADS[name][0].from_pretrained(tmp_path, output_loading_info=True)
    assert not any("attention" in key for key in info["missing_keys"])
    assert logits(loaded, inputs(name)).isfinite().all()


@some
def test_model_weights_reload_no_missing_tied_weights(name, core, tmp_path):
    model = headed(name, core)
    model.save_pretrained(tmp_path)
    save_file({"other": torch.ones(2)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"the weights lack .*attention_core"):
        type(model).from_pretrained(tmp_path)


@some
def test_can_init_all_missing_weights(name, core):
    config = headed(name, core).config
    with pytest.raises(ValueError, match=r"the weights lack .*attention_core"):
        HEADS[name][0].from_pretrained(None, config=config, state_dict={})


def in_memory_given_later(name, core):
    """A model that was built without memory, and got some with anything in it."""
    config = headed(name, core).config
    with torch.device("meta"):
        model = HEADS[name][0](config)
    model.to_empty(device="cpu")
    for x in (*model.parameters(), *model.buffers()):
        x.data.fill_(torch.nan if x.is_floating_point() else -1)
    model.init_weights()
    return model.eval()


@every
def test_init_weights_can_init_buffers(name, core):
    found = cores_of(in_memory_given_later(name, core))
    expected = cores_of(HEADS[name][0](headed(name, core).config))
    assert found.keys() == expected.keys()
    assert all(torch.equal(x, expected[path]) for path, x in found.items())


@pytest.mark.filterwarnings("ignore::lln.matching.UncalibratedWarning")
@every
def test_all_tensors_are_parameter_or_buffer(name, core):
    assert logits(in_memory_given_later(name, core), inputs(name)).isfinite().all()


@some
def test_can_be_initialized_on_meta(name, core):
    config = headed(name, core).config
    with torch.device("meta"):
        model = HEADS[name][0](config)
    assert all(w.is_meta for path, w in model.named_parameters() if "attention_core" not in path)


@some
def test_can_load_with_device_context_manager(name, core, tmp_path):
    model, arguments = headed(name, core), inputs(name)
    model.save_pretrained(tmp_path)
    with torch.device("cpu"):
        loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(logits(loaded, arguments), logits(model, arguments))


@some
def test_can_load_with_global_device_set(name, core, tmp_path):
    model, arguments = headed(name, core), inputs(name)
    model.save_pretrained(tmp_path)
    torch.set_default_device("cpu")
    try:
        loaded = type(model).from_pretrained(tmp_path)
    finally:
        torch.set_default_device(None)
    assert torch.equal(logits(loaded, arguments), logits(model, arguments))


@some
def test_cannot_load_with_meta_device_context_manager(name, core, tmp_path):
    headed(name, core).save_pretrained(tmp_path)
    with torch.device("meta"), pytest.raises(RuntimeError, match="meta device"):
        HEADS[name][0].from_pretrained(tmp_path)


@some
def test_sdpa_can_dispatch_non_composite_models(name, core, tmp_path):
    model, arguments = headed(name, core), inputs(name)
    model.save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path, attn_implementation="sdpa")
    assert plain.config._attn_implementation == "sdpa"
    model.set_attn_implementation("sdpa")
    assert torch.equal(logits(plain, arguments), logits(model, arguments))

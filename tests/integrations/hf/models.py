"""Tiny models of each architecture, with weights large enough for attention to matter."""

import torch
import transformers as hf

import lln
import lln.hf

N, VOCABULARY = 12, 50
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "initializer_range": 0.3,
}
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 40, "pad_token_id": 1}
IMAGE = {"image_size": 16, "patch_size": 4}


def bart_config(**options):
    sides = {
        f"{side}_{name}": x
        for side in ("encoder", "decoder")
        for name, x in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
    }
    return hf.BartConfig(**TEXT, d_model=32, init_std=0.3, **sides, **options)


MODELS = {
    "roberta": (hf.RobertaModel, lambda **o: hf.RobertaConfig(**SIZES, **TEXT, **o)),
    "bert": (hf.BertModel, lambda **o: hf.BertConfig(**SIZES, **TEXT, **o)),
    "modernbert": (  # the second layer attends within a window of 4 to both sides
        hf.ModernBertModel,
        lambda **o: hf.ModernBertConfig(
            **SIZES, **TEXT, global_attn_every_n_layers=2, local_attention=8, **o
        ),
    ),
    "distilbert": (
        hf.DistilBertModel,
        lambda **o: hf.DistilBertConfig(
            **TEXT, dim=32, hidden_dim=48, n_layers=2, n_heads=4, initializer_range=0.3, **o
        ),
    ),
    "gpt2": (
        hf.GPT2Model,
        lambda **o: hf.GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=40,
            n_embd=32,
            n_layer=2,
            n_head=4,
            initializer_range=0.3,
            scale_attn_by_inverse_layer_idx=True,
            **o,
        ),
    ),
    "llama": (
        hf.LlamaModel,
        lambda **o: hf.LlamaConfig(**SIZES, **TEXT, num_key_value_heads=2, **o),
    ),
    "bart": (hf.BartModel, bart_config),
    "vit": (hf.ViTModel, lambda **o: hf.ViTConfig(**SIZES, **IMAGE, **o)),
    "deit": (hf.DeiTModel, lambda **o: hf.DeiTConfig(**SIZES, **IMAGE, **o)),
}
TEXT_MODELS = [name for name in MODELS if name not in ("vit", "deit")]
CAUSAL = ("gpt2", "llama")


def build(name, core=None, **options):
    """A model for evaluation; with a core, causal layers are calibrated."""
    cls, config = MODELS[name]
    model = cls(config()).eval()
    for part, weight in model.named_parameters():
        if "position_embedding" in part or "embed_positions" in part or part == "wpe.weight":
            torch.nn.init.zeros_(weight)  # or a sequence would depend on where it stands
    return model if core is None else calibrated(lln.hf.apply(model, core, **options), name)


def calibrated(model, name):
    matchers = [m for m in model.modules() if isinstance(m, lln.matching.Matcher)]
    if any(hasattr(matcher, "stored") for matcher in matchers):
        with lln.matching.calibrating(model), torch.no_grad():
            run(model, name, inputs(name))
    return model


def inputs(name, batch=2, n=N):
    if name in ("vit", "deit"):
        return {"pixel_values": torch.randn(batch, 3, 16, 16)}
    tokens = {"input_ids": torch.randint(3, VOCABULARY, (batch, n))}
    if name == "bart":
        tokens["decoder_input_ids"] = torch.randint(3, VOCABULARY, (batch, n - 3))
    return tokens


def run(model, name, arguments):
    """The last hidden state; causal models without a cache."""
    cache = {"use_cache": False} if name in (*CAUSAL, "bart") else {}
    return model(**arguments, **cache).last_hidden_state


def padded(name, sequences, side, width=N + 2):
    """Arguments for sequences of different lengths, and where each stands.

    Padded places hold tokens like any other, so whoever reads them gets caught. The positions of
    rotary embeddings count from the first real token.
    """
    ids = torch.randint(3, VOCABULARY, (len(sequences), width))
    keep, positions = torch.zeros_like(ids), torch.zeros_like(ids)
    places = []
    for row, sequence in enumerate(sequences):
        n = len(sequence)
        place = slice(width - n, width) if side == "left" else slice(0, n)
        ids[row, place], keep[row, place], positions[row, place] = sequence, 1, torch.arange(n)
        places.append(place)
    arguments = {"input_ids": ids, "attention_mask": keep}
    if name in ("llama", "modernbert"):
        arguments["position_ids"] = positions
    if name == "bart":
        arguments |= {"decoder_input_ids": ids.flip(0), "decoder_attention_mask": keep.flip(0)}
    return arguments, places

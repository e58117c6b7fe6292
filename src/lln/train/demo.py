"""The demonstration: softmax and LLN+Diag on the text that comes with the package.

Small enough for minutes on two cores, and long enough to learn more than which bytes are frequent:
a model that knows only those has a loss of `unigram_loss`. Sequences are short because a model has
to find out first which positions are neighbours: among 64, softmax attention did not in 1500 steps.
"""

from lln.data import load_tokenizer, open_dataset, pack, unigram_entropy
from lln.train.config import Model, Pretraining, Training
from lln.train.inputs import Corpus

EXPERIMENT = Pretraining(
    name="demo",
    mixer=("softmax", "lln_diag"),
    data=Corpus(dataset="bundled", tokenizer="bytes", length=32, eval_examples=512),
    model=Model(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        hidden_dropout_prob=0.0,
        norm="pre",
        initializer_range=0.05,  # RoBERTa's 0.02 suits 768 features; a few hundred steps are lost
    ),
    # One block of all tokens would be softmax. The plain average of both branches came to a loss of
    # 1.42, learned shares to 1.38, softmax to 1.35.
    attention={"lln_diag": {"block_size": 16, "combine": "learnable_ratio"}},
    training=Training(
        steps=1500,
        batch_size=64,
        learning_rate=3e-3,
        warmup=0.1,
        clip=1.0,
        log_every=50,
        eval_every=250,
        save_every=500,
        measure_every=250,
    ),
)


def unigram_loss(experiment: Pretraining) -> float:
    """The loss, in nats, of a model that knows how frequent bytes are and nothing else."""
    data = experiment.data
    tokenizer = load_tokenizer(data.tokenizer)
    texts = open_dataset(data.dataset, root=data.root, split="train")
    return unigram_entropy(pack(texts, tokenizer, data.length), tokenizer).nats

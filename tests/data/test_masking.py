"""Dynamic masking: RoBERTa's rates, and masks that depend on seed, epoch and tokens alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lln.data import MaskingCollator, load_tokenizer

TOKENIZER = load_tokenizer("bytes")
BYTES = st.lists(st.integers(5, 260), min_size=1, max_size=60)


def example(ids):
    return {"input_ids": torch.tensor([0, *ids, 2])}


def many(count=400, length=100):
    ids = torch.randint(5, 261, (count, length), generator=torch.Generator().manual_seed(0))
    return [example(row.tolist()) for row in ids]


def original(examples):
    return torch.stack([item["input_ids"] for item in examples])  # (B, N)


def test_rates():
    examples = many()
    batch = MaskingCollator(TOKENIZER, seed=0)(examples)
    ids, labels, before = batch["input_ids"], batch["labels"], original(examples)
    chosen = labels != -100
    assert chosen.sum() == pytest.approx(0.15 * 400 * 100, rel=0.01)
    assert set(chosen.sum(1).tolist()) == {15}  # 0.15 of 100, in each sequence
    masked = (ids == TOKENIZER.mask_token_id) & chosen
    kept = (ids == before) & chosen
    # Within four standard deviations of 80, 10 and 10 %; a random token is the old one in 1 / 256.
    count = int(chosen.sum())
    for found, share in ((masked, 0.8), (kept, 0.1 + 0.1 / 256), (chosen & ~masked & ~kept, 0.1)):
        deviation = (share * (1 - share) / count) ** 0.5
        assert abs(found.sum() / count - share) < 4 * deviation
    replaced = ids[chosen & ~masked & ~kept]
    assert (replaced >= 5).all()
    assert len(replaced.unique()) > 200  # of 256: any token may come


@given(sequences=st.lists(BYTES, min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_any_batch(sequences, seed):
    examples = [example(ids) for ids in sequences]
    batch = MaskingCollator(TOKENIZER, seed=seed)(examples)
    longest = max(map(len, sequences)) + 2
    assert {key: tuple(value.shape) for key, value in batch.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "labels"), (len(sequences), longest)
    )
    for place, item in enumerate(examples):
        before, size = item["input_ids"], len(item["input_ids"])
        ids, labels = batch["input_ids"][place], batch["labels"][place]
        assert batch["attention_mask"][place].tolist() == [1] * size + [0] * (longest - size)
        assert (ids[size:] == TOKENIZER.pad_token_id).all()
        assert (labels[size:] == -100).all()
        chosen = labels[:size] != -100
        assert not chosen[0]
        assert not chosen[-1]  # special tokens stay
        assert 1 <= chosen.sum() <= 0.15 * (size - 2) + 1
        torch.testing.assert_close(labels[:size][chosen], before[chosen])
        torch.testing.assert_close(ids[:size][~chosen], before[~chosen])


def test_the_share_is_right_on_average():
    """7 tokens have one masked, and sometimes two: 1.05 on average."""
    examples = many(4000, 7)
    labels = MaskingCollator(TOKENIZER, seed=0)(examples)["labels"]
    assert (labels != -100).sum() / 4000 == pytest.approx(1.05, abs=0.015)


def test_masks_depend_on_seed_epoch_and_tokens_alone():
    examples = many(8, 50)
    whole = MaskingCollator(TOKENIZER, seed=3)(examples)
    for part in (slice(0, 3), slice(3, 8)):  # other processes, other batches, another order
        other = MaskingCollator(TOKENIZER, seed=3)(examples[part][::-1])
        for key, value in other.items():
            torch.testing.assert_close(value.flip(0), whole[key][part])
    collator = MaskingCollator(TOKENIZER, seed=3)
    collator.set_epoch(2)
    collator(many(3, 20))
    second = collator(examples)  # whatever was drawn before
    resumed = MaskingCollator(TOKENIZER, seed=3)
    resumed.set_epoch(2)
    torch.testing.assert_close(resumed(examples), second)
    assert (second["labels"] != whole["labels"]).any()
    assert (MaskingCollator(TOKENIZER, seed=4)(examples)["labels"] != whole["labels"]).any()


def test_padding_of_blocks_changes_nothing():
    padded = {"input_ids": torch.tensor([0, 50, 51, 52, 2, 1, 1])}
    alone = MaskingCollator(TOKENIZER, seed=0)([example([50, 51, 52])])
    for key, value in MaskingCollator(TOKENIZER, seed=0)([padded]).items():
        torch.testing.assert_close(value[:, :5], alone[key])


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_learn_of_the_epoch(persistent):
    examples, collator = many(4, 30), MaskingCollator(TOKENIZER, seed=0)
    loader = torch.utils.data.DataLoader(
        examples,
        batch_size=2,
        collate_fn=collator,
        num_workers=1,
        persistent_workers=persistent,
        multiprocessing_context="fork",
    )
    for epoch in range(2):
        collator.set_epoch(epoch)
        found = torch.cat([batch["labels"] for batch in loader])
        torch.testing.assert_close(found, collator(examples)["labels"])


def test_refusals():
    with pytest.raises(ValueError, match="share 0 is not above 0"):
        MaskingCollator(TOKENIZER, seed=0, share=0)
    without = load_tokenizer("bytes")
    without.mask_token = None
    with pytest.raises(ValueError, match="needs a mask token"):
        MaskingCollator(without, seed=0)

"""ListOps: generated, read and tokenised."""

import math
import os
import re
from collections import Counter

import pytest

from lln.data import (
    encode_sequences,
    generate_listops,
    listops_statistics,
    load_tokenizer,
    open_dataset,
)
from lln.data.parallel import mapped

INNERMOST = re.compile(r"\[(MIN|MAX|MED|SM) ([\d ]+) \]")


def evaluate(text):
    """Replaces innermost lists by their values until one digit is left."""

    def value(found):
        digits = sorted(map(int, found[2].split()))
        middle = len(digits) // 2
        return {
            "MIN": str(digits[0]),
            "MAX": str(digits[-1]),
            "MED": str((digits[middle] + digits[-1 - middle]) // 2),
            "SM": str(sum(digits) % 10),
        }[found[1]]

    while not text.isdigit():
        text, count = INNERMOST.subn(value, text)
        assert count
    return int(text)


def generate(tmp_path, size, **options):
    return generate_listops(size, **{"seed": 0, "cache": tmp_path, **options})


def test_the_values_of_ten_thousand_expressions(tmp_path):
    texts = generate(tmp_path, 10_000, lengths=(10, 200), depth=6)
    assert [evaluate(text) for text in texts["text"]] == list(texts["label"])
    assert len(Counter(texts["label"])) == 10


def test_expressions_as_long_range_arenas(tmp_path):
    texts = generate(tmp_path, 200)
    assert [evaluate(text) for text in texts["text"]] == list(texts["label"])
    assert len(set(texts["text"])) == 200
    found = listops_statistics(texts)
    print(found)
    assert found.examples == 200
    assert 500 < found.shortest <= found.median_length <= found.longest < 2000
    assert 900 < found.mean_length < 1200
    assert found.deepest == 10
    assert 5.8 < found.mean_arguments < 6.2  # 2 to 10, each as often
    operators = Counter(word for text in texts["text"] for word in text.split() if "[" in word)
    assert len(operators) == 4
    assert max(operators.values()) < 1.05 * min(operators.values())


def test_statistics_of_expressions_counted_by_hand(tmp_path):
    put(tmp_path, "[MAX 1 [SM 2 3 ] ]\t5\n7\t7\n")
    found = listops_statistics(open_dataset("listops", root=tmp_path))
    assert found[:8] == (2, 4, 4, 1, 7, 2, 3, 2)
    assert found.label_shares == (0, 0, 0, 0, 0, 0.5, 0, 0.5, 0, 0)


def test_a_seed_a_split_and_an_index_make_an_example(tmp_path):
    options = {"lengths": (10, 50)}
    few = list(generate(tmp_path, 20, **options)["text"])
    more = list(generate(tmp_path, 30, **options)["text"])
    assert more[:20] == few
    assert list(generate(tmp_path / "elsewhere", 20, **options)["text"]) == few
    for other in ({"seed": 1}, {"split": "valid"}, {"split": "test"}):
        assert not set(few) & set(generate(tmp_path, 20, **options, **other)["text"])


def test_the_cache_is_used(tmp_path):
    generate(tmp_path, 5, lengths=(10, 50))
    (file,) = tmp_path.iterdir()
    file.write_text("Source\tTarget\n1\t1\n")
    assert len(generate(tmp_path, 5, lengths=(10, 50))) == 1


def test_processes_keep_the_order():
    numbers = list(range(50))
    expected = [math.factorial(number) for number in numbers]
    assert list(mapped(math.factorial, iter(numbers), "", total=50, least=25)) == expected
    assert list(mapped(math.factorial, iter(numbers), "", total=50, least=100)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "'dev' is not one of the splits train"),
        ({"lengths": (500, 501)}, "had more than 500 and fewer than 501 tokens: choose other"),
        ({"depth": 2}, "depth 2 with 10 arguments had more than 500"),
        ({"arguments": 1}, "size 3, depth 10 and arguments 1 must be at least 1, 1 and 2"),
    ],
)
def test_wrong_settings(tmp_path, options, message, monkeypatch):
    monkeypatch.setattr("lln.data.listops.ATTEMPTS", 100)
    with pytest.raises(ValueError, match=message):
        generate(tmp_path, 3, **options)
    assert not list(tmp_path.iterdir())


def put(root, rows, name="listops-1000/basic_train.tsv"):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("Source\tTarget\n" + rows)


@pytest.mark.parametrize("folder", ["listops-1000", "lra_release/lra_release/listops-1000"])
def test_the_release_of_long_range_arena(tmp_path, folder):
    for split, value in (("train", 4), ("val", 5), ("test", 6)):
        put(tmp_path, f"( ( ( [MAX 1 ) {value} ) ] )\t{value}\n", f"{folder}/basic_{split}.tsv")
    for split, value in (("train", 4), ("valid", 5), ("test", 6)):
        row = open_dataset("listops", root=tmp_path, split=split)[0]
        assert row == {"text": f"[MAX 1 {value} ]", "label": value}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("[FIRST 1 2 ]\t1\n", r"line 2: '\[FIRST' is no token of ListOps"),
        ("1\tone\n", "line 2: the label 'one' is not a digit"),
        ("1\n", "line 2 has 1 columns instead of 2"),
        ("", "has no rows"),
    ],
)
def test_broken_rows(tmp_path, rows, message):
    put(tmp_path, rows)
    with pytest.raises(ValueError, match=message):
        open_dataset("listops", root=tmp_path)


def test_missing_files_name_the_generator(tmp_path):
    with pytest.raises(ValueError, match=r"make it with lln\.data\.generate_listops"):
        open_dataset("listops", root=tmp_path)
    with pytest.raises(ValueError, match="has no split 'train': it is a test set"):
        open_dataset("listops_d20s", root=tmp_path)


def test_tokens(tmp_path):
    put(tmp_path, "[MED 0 9 [SM 1 2 ] ]\t3\n7\t7\n")
    tokenizer = load_tokenizer("listops")
    assert len(tokenizer) == 20
    encoded = encode_sequences(open_dataset("listops", root=tmp_path), tokenizer, 8)
    assert encoded.column_names == ["input_ids", "labels"]
    assert encoded[0] == {"input_ids": [7, 10, 19, 8, 11, 12, 9, 9], "labels": 3}
    assert encoded[1] == {"input_ids": [17], "labels": 7}
    assert tokenizer.decode(encoded[0]["input_ids"]) == "[MED 0 9 [SM 1 2 ] ]"
    assert encode_sequences(open_dataset("listops", root=tmp_path), tokenizer, 3)[0][
        "input_ids"
    ] == [7, 10, 19]
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    assert load_tokenizer(tmp_path / "tokenizer")("[MIN 1 ]")["input_ids"] == [0, 5, 11, 9, 2]


@pytest.mark.skipif(
    "LLN_DATA" not in os.environ, reason="LLN_DATA does not name a folder of real data sets"
)
def test_every_expression_of_the_first_papers_test_set():
    texts = open_dataset("listops_d20s", split="test")
    assert len(texts) == 10_000
    assert [evaluate(text) for text in texts["text"]] == list(texts["label"])

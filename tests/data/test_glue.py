"""Tasks of GLUE from official, plain and Parquet files, as features, and scored."""

import gzip

import pytest
from datasets import Dataset

from lln.data import TASKS, encode, load_tokenizer, open_dataset, scores

MNLI = ["index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"]
MNLI += ["sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "label1", "gold_label"]
MNLI_DEV = [*MNLI[:-1], "label2", "label3", "label4", "label5", "gold_label"]
QQP = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]


def table(*rows):
    return "".join("\t".join(row) + "\n" for row in rows)


def put(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = table(*rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def rows(dataset):
    return [tuple(row.values()) for row in dataset]


def test_official_sst2(tmp_path):
    put(tmp_path / "SST-2/train.tsv", ["sentence", "label"], ['a " quote', "1"], ["dull ", "0"])
    put(tmp_path / "SST-2/dev.tsv", ["sentence", "label"], ["fine", "1"])
    train = open_dataset("sst2", root=tmp_path)
    assert rows(train) == [('a " quote', 1), ("dull ", 0)]
    assert train.features["label"].names == ["negative", "positive"]
    assert rows(open_dataset("sst2", root=tmp_path, split="valid")) == [("fine", 1)]


def test_official_qnli(tmp_path):
    header = ["index", "question", "sentence", "label"]
    put(tmp_path / "glue_data/QNLI/train.tsv", header, ["0", "Who?", "He.", "not_entailment"])
    assert rows(open_dataset("qnli", root=tmp_path)) == [("Who?", "He.", 1)]


def test_official_mnli(tmp_path):
    def cells(header, **values):
        return [values.get(name, "-") for name in header]

    pair = {"sentence1": "A man.", "sentence2": "No man.", "label1": "neutral"}
    put(tmp_path / "MNLI/train.tsv", MNLI, cells(MNLI, **pair, gold_label="contradiction"))
    for split, label in (("matched", "neutral"), ("mismatched", "entailment")):
        row = cells(MNLI_DEV, **pair, gold_label=label)
        put(tmp_path / f"MNLI/dev_{split}.tsv", MNLI_DEV, row)
    for split, label in (("train", 2), ("valid", 1), ("valid_mismatched", 0)):
        assert rows(open_dataset("mnli", root=tmp_path, split=split)) == [
            ("A man.", "No man.", label)
        ]


def test_broken_rows_of_official_qqp_are_counted(tmp_path):
    good = ["1", "2", "3", "Why?", "How?", "1"]
    put(tmp_path / "QQP/train.tsv", QQP, good, ["4", "5", "6", "cut"], good, ["off"])
    with pytest.warns(UserWarning, match="2 of 4 rows have not 6 columns .* first one in line 3"):
        train = open_dataset("qqp", root=tmp_path)
    assert rows(train) == [("Why?", "How?", 1)] * 2


@pytest.mark.parametrize("file", ["qqp_train.tsv", "glue/qqp_train_subset.tsv.gz"])
def test_plain_files(tmp_path, file):
    put(tmp_path / file, ["question1", "question2", "label"], ["a", "b", "duplicate"])
    assert rows(open_dataset("qqp", root=tmp_path)) == [("a", "b", 1)]


def test_parquet_as_on_the_hub(tmp_path):
    (tmp_path / "mnli").mkdir()
    columns = {"premise": ["p"], "hypothesis": ["h"], "label": [2], "idx": [0]}
    path = tmp_path / "mnli/validation_matched-00000-of-00001.parquet"
    Dataset.from_dict(columns).to_parquet(path)
    assert rows(open_dataset("mnli", root=tmp_path, split="valid")) == [("p", "h", 2)]
    Dataset.from_dict({**columns, "label": [-1]}).to_parquet(path)
    with pytest.raises(ValueError, match="row 1: unknown label '-1'"):
        open_dataset("mnli", root=tmp_path, split="valid")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([["text", "label"], ["a", "1"]], "has no column 'sentence': it has text, label"),
        ([["sentence", "score"], ["a", "1"]], "has no column 'label': it has sentence, score"),
        ([["sentence", "label"], ["a", "2"]], "line 2: unknown label '2', expected negative, po"),
        ([["sentence", "label"], ["a", "1"], ["cut"]], "line 3 has 1 columns instead of 2"),
        ([["sentence", "label"]], "has no rows: expected a header line"),
        ([], "is empty"),
    ],
)
def test_wrong_tables(tmp_path, lines, message):
    put(tmp_path / "SST-2/train.tsv", *lines)
    with pytest.raises(ValueError, match=message) as caught:
        open_dataset("sst2", root=tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_there_are_no_labels_of_test(tmp_path):
    with pytest.raises(ValueError, match="does not publish the labels of test"):
        open_dataset("sst2", root=tmp_path, split="test")


def test_features():
    tokenizer = load_tokenizer("bytes")
    pairs = {"question": ["ab", "a </s>"], "sentence": ["c", "d" * 50], "label": [0, 1]}
    features = encode("qnli", Dataset.from_dict(pairs), tokenizer, max_length=20)
    assert features.column_names == ["input_ids", "attention_mask", "labels"]
    assert [tokenizer.decode(ids) for ids in features["input_ids"]] == [
        "<s>ab</s></s>c</s>",
        "<s>a </s></s></s>" + "d" * 10 + "</s>",
    ]
    assert list(features["labels"]) == [0, 1]
    # What spells a special token is text, and only that: bytes, not one token.
    assert features["input_ids"][1].count(tokenizer.eos_token_id) == 3
    assert [len(mask) for mask in features["attention_mask"]] == [7, 20]


def test_features_that_cannot_be(tmp_path):
    texts, tokenizer = Dataset.from_dict({"sentence": ["a"], "label": [1]}), load_tokenizer("bytes")
    with pytest.raises(ValueError, match="'cola' is not one of the tasks sst2, qnli, mnli, qqp"):
        encode("cola", texts, tokenizer, max_length=8)
    with pytest.raises(ValueError, match=r"max_length 2 leaves no place .* 2 special tokens"):
        encode("sst2", texts, tokenizer, max_length=2)


def test_scores():
    predicted, true = [1, 1, 0, 0, 1], [1, 0, 1, 0, 1]
    assert scores("sst2", predicted, true) == {"accuracy": 0.6}
    # Two of three called duplicates are, and two of three duplicates are found.
    assert scores("qqp", predicted, true) == {"accuracy": 0.6, "f1": pytest.approx(2 / 3)}
    assert scores("qqp", [0, 0], [0, 0]) == {"accuracy": 1.0, "f1": 0.0}
    assert all(task.metrics[0] == "accuracy" for task in TASKS.values())

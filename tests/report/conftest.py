"""Small models in folders, as users have them, and a real browser for the pages."""

import json
import shutil

import pytest
import torch

from report.looking import visiting

transformers = pytest.importorskip("transformers", reason="the extra report is not installed")

CHROMIUM = shutil.which("chromium")
SENTENCE = "the lobster of sea lives in cold water and eats small fish at night"


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """Two layers of three heads, 32 positions, and a word-level tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder = tmp_path_factory.mktemp("models") / "tiny<b>bert"
    vocabulary = {
        word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *SENTENCE.split()])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]"
    ).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def vit(tmp_path_factory):
    """One layer, 16 patches and a class token."""
    folder = tmp_path_factory.mktemp("models") / "vit"
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=16,
        patch_size=4,
    )
    transformers.ViTModel(config).save_pretrained(folder)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "lobster.txt"
    file.write_text(" ".join([SENTENCE] * 20))
    return file


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    with visiting(browser) as visit:
        yield visit

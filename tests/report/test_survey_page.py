"""The page of a survey, in a real browser and opened as a file."""

import re
from dataclasses import replace

import pytest

from lln.report import build_survey_page, survey
from lln.report.subject import load_model, read_text
from report.looking import HOSTILE, brightness, drawing


@pytest.fixture(scope="module")
def result(bert, text):
    measured = survey(read_text("tiny", bert, load_model(bert), text, max_tokens=64))
    words = [HOSTILE, "<s>", *measured.words[2:]]
    layers = [(number, f"{name}{HOSTILE}") for number, name in measured.layers]
    return replace(measured, model=HOSTILE, source=HOSTILE, words=words, layers=layers)


@pytest.fixture(scope="module")
def file(result, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(build_survey_page(result, footer=HOSTILE), encoding="utf-8")
    return path


def test_nothing_that_was_measured_becomes_markup(file):
    page = file.read_text(encoding="utf-8")
    assert page.count("document.title='owned'") >= 3
    assert "<script>document" not in page
    assert "<img src=x" not in page


def test_the_page_fetches_nothing(file):
    page = file.read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=", page.partition("<body")[0])


FIGURES = ("temperature", "entropy", "gap", "ratio", "distance", "scatter", "histogram", "viewer")


def test_choosing_a_head_changes_the_pictures(visit, file, result):
    page = visit(file)
    before = {figure: drawing(page, figure) for figure in FIGURES}
    page.select_option("#layer", "1")
    page.select_option("#head", "2")
    page.wait_for_selector("body[data-drawn='1,2']")
    for figure in FIGURES:
        assert drawing(page, figure) != before[figure], figure
    chosen = next(head for head in result.heads if (head.layer, head.head) == (1, 2))
    drawn = page.evaluate("document.getElementById('viewer').data[0].z")
    assert drawn == chosen.weights
    # toPrecision keeps three digits, as Python's :.3g but for zeros at the end.
    shown = re.search(r"entropy ([\d.]+)", page.text_content("#numbers"))
    assert float(shown[1]) == float(f"{chosen.entropy:.3g}")


def test_a_click_on_a_cell_chooses_its_head(visit, file):
    page = visit(file)
    box = page.locator("#entropy .nsewdrag").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 5 / 6, box["y"] + box["height"] * 3 / 4)
    page.wait_for_selector("body[data-drawn='1,2']")
    assert page.input_value("#layer") == "1"
    assert page.input_value("#head") == "2"


def test_hovering_shows_numbers(visit, file, result):
    page = visit(file)
    box = page.locator("#temperature .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 6, box["y"] + box["height"] / 4)
    label = page.wait_for_selector("#temperature .hoverlayer .hovertext").text_content()
    assert "head 0" in label
    assert f"temperature {result.heads[0].temperature:.3g}"[:15] in label


def test_tokens_are_shown_as_they_are(visit, file):
    page = visit(file)
    labels = page.locator("#viewer .ytick").all_text_contents()
    assert labels[1] == "<s>"
    assert labels[0] == HOSTILE
    assert page.title() == f"Attention of {HOSTILE}"
    assert page.text_content("h1") == f"Attention of {HOSTILE}"


def test_dark_and_light(visit, file):
    light, dark = visit(file), visit(file, "dark")

    def colors(page):
        return page.evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('#scatter .xtick text')).fill]"
        )

    (page, ink), (dark_page, dark_ink) = colors(light), colors(dark)
    assert brightness(page) > brightness(ink) + 250
    assert brightness(dark_ink) > brightness(dark_page) + 250
    before = drawing(light, "entropy")
    light.emulate_media(color_scheme="dark")
    light.wait_for_function(
        "expected => getComputedStyle(document.querySelector('#scatter .xtick text')).fill"
        " === expected",
        arg=dark_ink,
    )
    assert drawing(light, "entropy") != before

"""The page, in a real browser and opened as a file."""

import re
import shutil
from dataclasses import replace

import pytest

from lln.report import build_page, survey
from lln.report.subject import load_model, read_text

CHROMIUM = shutil.which("chromium")
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"alert(1)\">"


@pytest.fixture(scope="module")
def result(bert, text):
    measured = survey(read_text("tiny", bert, load_model(bert), text, max_tokens=64))
    words = [HOSTILE, "<s>", *measured.words[2:]]
    layers = [(number, f"{name}{HOSTILE}") for number, name in measured.layers]
    return replace(measured, model=HOSTILE, source=HOSTILE, words=words, layers=layers)


@pytest.fixture(scope="module")
def file(result, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(build_page(result, footer=HOSTILE), encoding="utf-8")
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


@pytest.fixture(scope="module")
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
def visit(browser, file):
    """Opens the page; afterwards it must have had nothing to complain about."""
    complaints, requests, contexts = [], [], []

    def visit(scheme="light"):
        context = browser.new_context(
            color_scheme=scheme, viewport={"width": 1280, "height": 900}, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("body[data-drawn='0,0']")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "blob:", "data:"))] == []


FIGURES = ("temperature", "entropy", "gap", "ratio", "distance", "scatter", "histogram", "viewer")


def drawing(page, figure):
    """The shapes that are drawn; a screenshot also changes when a figure moves by half a pixel."""
    return page.locator(f"#{figure} .main-svg").evaluate_all("all => all.map(svg => svg.innerHTML)")


def test_choosing_a_head_changes_the_pictures(visit, result):
    page = visit()
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


def test_a_click_on_a_cell_chooses_its_head(visit):
    page = visit()
    box = page.locator("#entropy .nsewdrag").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 5 / 6, box["y"] + box["height"] * 3 / 4)
    page.wait_for_selector("body[data-drawn='1,2']")
    assert page.input_value("#layer") == "1"
    assert page.input_value("#head") == "2"


def test_hovering_shows_numbers(visit, result):
    page = visit()
    box = page.locator("#temperature .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 6, box["y"] + box["height"] / 4)
    label = page.wait_for_selector("#temperature .hoverlayer .hovertext").text_content()
    assert "head 0" in label
    assert f"temperature {result.heads[0].temperature:.3g}"[:15] in label


def test_tokens_are_shown_as_they_are(visit):
    page = visit()
    labels = page.locator("#viewer .ytick").all_text_contents()
    assert labels[1] == "<s>"
    assert labels[0] == HOSTILE
    assert page.title() == f"Attention of {HOSTILE}"
    assert page.text_content("h1") == f"Attention of {HOSTILE}"


def brightness(color):
    return sum(map(int, re.findall(r"\d+", color)[:3]))


def test_dark_and_light(visit):
    light, dark = visit("light"), visit("dark")

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

"""The page of runs, in a real browser and opened as a file."""

import json
import re

import pytest

from lln.report import build_run_page, find_runs, read_run
from report.looking import HOSTILE, brightness, drawing, visiting
from report.run_folders import write_run

PLAIN = (
    "train-loss",
    "eval-loss",
    "eval-accuracy",
    "train-learning_rate",
    "train-grad_norm",
    "train-loss_scale",
    "train-seconds_per_step",
    "train-memory_bytes",
)
ATTENTION = ("temperature", "entropy", "gap", "alpha", "beta")


def save(runs, path):
    path.write_text(build_run_page(runs, footer=HOSTILE), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Softmax once and LLN+Diag with two seeds, the second of them killed."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "softmax-seed0", "softmax", loss_scale=True)
    write_run(root / "lln_diag-seed0", loss_scale=True, steps=6000)
    killed = write_run(root / "lln_diag-seed1", seed=1, status="running")
    with (killed / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "ev')
    return [read_run(folder) for folder in find_runs([root])]


@pytest.fixture(scope="module")
def file(runs, tmp_path_factory):
    return save(runs, tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run that tries to be markup wherever it can."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    write_run(folder, name=HOSTILE)
    head = json.loads((folder / "run.json").read_text())
    head |= {"label": f"{HOSTILE} %{{x}}", "command": HOSTILE, "kind": HOSTILE, "status": HOSTILE}
    head |= {"versions": {HOSTILE: HOSTILE}, "config": {HOSTILE: HOSTILE}, "finished": HOSTILE}
    head["final"][HOSTILE] = 1.0
    (folder / "run.json").write_text(json.dumps(head))
    metrics = (folder / "metrics.jsonl").read_text()
    metrics = metrics.replace("encoder.layers", json.dumps(HOSTILE)[1:-1])
    metrics = metrics.replace('"accuracy"', json.dumps(HOSTILE))
    (folder / "metrics.jsonl").write_text(metrics)
    return save([read_run(folder)], folder / "page.html")


@pytest.fixture(scope="module")
def page(browser, file):
    """For tests that change nothing."""
    with visiting(browser) as visit:
        yield visit(file)


def test_nothing_of_a_run_becomes_markup(hostile, visit):
    text = hostile.read_text(encoding="utf-8")
    assert text.count("document.title=") >= 12
    assert "<script>document" not in text
    assert "<img src=x" not in text
    page = visit(hostile)
    assert page.title() == HOSTILE
    assert page.text_content("#legend button") == f"{HOSTILE} %{{x}}"
    assert HOSTILE in page.text_content("#layer option:last-child")
    hover(page, "eval-loss")
    assert f"{HOSTILE} %{{x}} · seed 0" in page.text_content("#eval-loss .hoverlayer .hovertext")


def test_the_page_fetches_nothing(file):
    page = file.read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=", page.partition("<body")[0])


def traces(page, figure):
    """Name → numbers of the lines of a figure, without bands and what lies behind a smooth one."""
    found = page.evaluate("id => document.getElementById(id).data", figure)
    return {t["name"]: t for t in found if t.get("hoverinfo") != "skip"}


def hover(page, figure):
    """Puts the mouse on the middle of a line of a figure."""
    page.locator(f"#{figure}").scroll_into_view_if_needed()
    box = page.locator(f"#{figure} .nsewdrag").bounding_box()
    line = page.locator(f"#{figure} .scatterlayer .js-line").last
    x, y = line.evaluate(
        "path => { const p = path.getPointAtLength(path.getTotalLength() / 2); return [p.x, p.y]; }"
    )
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.wait_for_selector(f"#{figure} .hoverlayer .hovertext")


def rounded(values):
    return [float(f"{value:.6g}") for value in values]


SOFTMAX, FIRST, SECOND = "softmax · seed 0", "lln_diag · seed 0", "lln_diag · seed 1"


def test_the_figures_show_what_was_logged(page, runs):
    first, _, softmax = runs
    shown = traces(page, "eval-loss")
    assert list(shown) == [FIRST, SECOND, SOFTMAX]
    assert shown[SOFTMAX]["x"] == softmax.evaluation["loss"].steps
    assert shown[SOFTMAX]["y"] == rounded(softmax.evaluation["loss"].values)
    assert shown[FIRST]["y"] == rounded(first.evaluation["loss"].values)
    accuracy = traces(page, "eval-accuracy")[SOFTMAX]["y"]
    assert accuracy == rounded(100 * value for value in softmax.evaluation["accuracy"].values)
    assert list(traces(page, "train-loss_scale")) == [FIRST, SOFTMAX]
    assert list(traces(page, "alpha")) == [FIRST, SECOND]
    for figure in (*PLAIN, *ATTENTION):
        assert page.locator(f"#{figure} .scatterlayer .js-line").count() > 0, figure


def test_results_notes_and_origin(page, runs):
    rows = page.locator("tbody tr").all_inner_texts()
    assert len(rows) == 4
    assert rows[0].split("\t")[:2] == ["lln_diag", "1 of 2 seeds"]
    assert f"{runs[2].final['eval_loss']:.3f}" in rows[3]
    notes = page.locator(".notes li").all_text_contents()
    assert notes[0].startswith(f"{SECOND}: still running")
    assert notes[1].startswith(f"{SECOND}: left out 1 line of metrics.jsonl")
    assert page.locator("main > section > pre").all_text_contents() == [runs[0].command]
    assert "transformers 5.22.2" in page.inner_text(".origin").replace("\n", " ")
    page.click("summary >> nth=0")
    assert '"mixer": "lln_diag"' in page.inner_text("details pre >> nth=0")


def test_the_legend_hides_and_shows_everywhere(visit, file):
    page = visit(file)
    before = {figure: drawing(page, figure) for figure in PLAIN}
    page.click("#legend button:has-text('lln_diag')")
    page.wait_for_selector("body[data-drawn$=',1']")
    assert list(traces(page, "train-loss")) == [SOFTMAX]
    assert list(traces(page, "entropy")) == [SOFTMAX]
    for figure in PLAIN:
        assert drawing(page, figure) != before[figure], figure
    page.click("#legend button:has-text('softmax')")
    page.wait_for_selector("body[data-drawn$=',']")
    assert traces(page, "train-grad_norm") == {}
    assert page.text_content("#gap .annotation-text") == "no run that is shown has this"
    page.click("#legend button:has-text('softmax')")
    # And back again, with the keyboard alone.
    page.keyboard.press("Shift+Tab")
    button = page.locator("#legend button:has-text('lln_diag')")
    assert button.get_attribute("aria-pressed") == "false"
    page.keyboard.press("Space")
    page.wait_for_selector("body[data-drawn$=',0+1']")
    assert button.get_attribute("aria-pressed") == "true"
    for figure in PLAIN:
        assert list(traces(page, figure))[-1] == SOFTMAX


def test_over_time(visit, file, runs):
    page = visit(file)
    page.select_option("#axis", "seconds")
    page.wait_for_selector("body[data-drawn^='seconds']")
    shown = traces(page, "eval-loss")[SOFTMAX]
    minutes = [second / 60 for second in runs[2].evaluation["loss"].seconds]
    assert shown["x"] == pytest.approx(minutes)
    assert page.text_content("#eval-loss .xtitle") == "minutes"
    assert page.text_content("#entropy .xtitle") == "minutes"


def test_smoothing(visit, file, runs):
    page = visit(file)
    raw = rounded(runs[2].train["loss"].values)
    mean, weight, expected = 0.0, 0.0, []
    for value in raw:
        mean, weight = 0.6 * mean + 0.4 * value, 0.6 * weight + 0.4
        expected.append(mean / weight)
    assert traces(page, "train-loss")[SOFTMAX]["y"] == pytest.approx(expected)
    page.focus("#smoothing")
    page.keyboard.press("Home")
    page.wait_for_selector("body[data-drawn^='steps,0,']")
    assert traces(page, "train-loss")[SOFTMAX]["y"] == raw


def test_choosing_a_layer_and_a_run(visit, file, runs):
    page = visit(file)
    first, _, softmax = runs
    assert traces(page, "gap")[SOFTMAX]["y"] == rounded(softmax.attention["gap"]["all"].values)
    page.select_option("#layer", "2")
    page.wait_for_selector("body[data-drawn*=',all,2,']")
    assert traces(page, "gap")[SOFTMAX]["y"] == rounded(softmax.attention["gap"]["2"].values)
    assert list(traces(page, "gap")) == [FIRST, SECOND, SOFTMAX]
    band = page.evaluate("document.getElementById('gap').data[2]")
    curve = softmax.attention["gap"]["2"]
    assert band["y"] == rounded([*curve.high, *curve.low[::-1]])

    page.select_option("#run", label=FIRST)
    page.wait_for_selector("body[data-drawn*=',0,2,']")
    assert list(traces(page, "gap")) == [FIRST]
    page.select_option("#layer", "all")
    page.wait_for_selector("body[data-drawn*=',0,all,']")
    shown = traces(page, "temperature")
    assert list(shown) == ["layer 0", "layer 1", "layer 2"]
    for layer, trace in enumerate(shown.values()):
        expected = first.attention["temperature"][str(layer)].values
        assert trace["y"] == rounded(expected)
    assert len({trace["line"]["color"] for trace in shown.values()}) == 3


def test_hovering_shows_numbers(page):
    hover(page, "eval-loss")
    label = page.text_content("#eval-loss .hoverlayer .hovertext")
    assert re.search(r"seed \d", label)
    assert re.search(r"step \d+: \d\.\d+", label)


def test_everything_can_be_reached_with_the_keyboard(page):
    page.focus("#legend button")
    reached = []
    for _ in range(10):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached[:3] == ["BUTTON", "axis", "smoothing"]
    assert {"run", "layer", "SUMMARY"} <= set(reached)


def test_dark_and_light(visit, file):
    light, dark = visit(file), visit(file, "dark")

    def colors(page):
        return page.evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('#train-loss .xtick text')).fill]"
        )

    (page, ink), (dark_page, dark_ink) = colors(light), colors(dark)
    assert brightness(page) > brightness(ink) + 250
    assert brightness(dark_ink) > brightness(dark_page) + 250
    before = traces(light, "train-loss")[SOFTMAX]["line"]["color"]
    light.emulate_media(color_scheme="dark")
    light.wait_for_function(
        "before => document.getElementById('train-loss').data.at(-1).line.color !== before",
        arg=before,
    )
    after = traces(light, "train-loss")[SOFTMAX]["line"]["color"]
    assert after == traces(dark, "train-loss")[SOFTMAX]["line"]["color"]


def test_a_narrow_screen_scrolls_one_way(visit, file):
    page = visit(file, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_what_a_run_lacks_is_left_out(visit, tmp_path):
    folder = write_run(tmp_path / "run", layers=0, status="running")
    page = visit(save([read_run(folder)], tmp_path / "page.html"))
    assert page.locator("h2").all_text_contents() == [
        "Results",
        "Loss and metrics",
        "Optimisation",
        "Time and memory",
        "Command, versions and machine",
        "Configurations",
    ]
    assert page.locator("#train-loss_scale, #temperature, #run").count() == 0
    (folder / "metrics.jsonl").unlink()
    page = visit(save([read_run(folder)], tmp_path / "page.html"))
    assert page.locator("figure").count() == 0
    assert page.locator("tbody tr").count() == 1

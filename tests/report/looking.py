"""What a browser shows of a page."""

import re
from contextlib import contextmanager

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"alert(1)\">"


@contextmanager
def visiting(browser):
    """Opens pages; afterwards they must have had nothing to complain about."""
    complaints, requests, contexts = [], [], []

    def visit(file, scheme="light", width=1280):
        context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("body[data-drawn]")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "blob:", "data:"))] == []


def drawing(page, figure):
    """The shapes that are drawn; a screenshot also changes when a figure moves by half a pixel."""
    return page.locator(f"#{figure} .main-svg").evaluate_all("all => all.map(svg => svg.innerHTML)")


def brightness(color):
    return sum(map(int, re.findall(r"\d+", color)[:3]))

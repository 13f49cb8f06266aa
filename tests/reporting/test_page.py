"""Pages of results in Chromium: they work, are accessible, and run nothing from a file."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from common import chromium

from convtime.reporting.report import page_of_results
from convtime.storage.load import MODULES
from convtime.view.wording import printable
from tests.helpers.every_result import every_result

pytestmark = pytest.mark.thorough

KINDS = [*MODULES]
HOSTILE = (
    "</script><script>hacked=1</script><img src=x onerror=hacked=1>\x1b[31m\u202e\"'&amp;|*_`$"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    missing = "there is no Chromium" if chromium.find() is None else ""
    try:
        import axe_playwright_python  # noqa: F401
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed"
    if missing and os.environ.get("FAIL_WITHOUT_CHROMIUM") == "1":
        pytest.fail(f"FAIL_WITHOUT_CHROMIUM=1 and {missing}", pytrace=False)
    if missing:
        pytest.skip(missing)
    with chromium.launched() as launched:
        yield launched


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    """A page with a result of every kind."""
    path = folder / "every.html"
    path.write_text(page_of_results(every_result()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def every(browser: Any, file: Path) -> Iterator[chromium.Opened]:
    opened = chromium.opened(browser, file)
    yield opened
    assert opened.problems == []
    assert opened.requests == []


def open_everything(page: Any) -> None:
    """Open all details and the first row with figures of each table, and wait for the figures."""
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    page.evaluate(
        "document.querySelectorAll('tbody').forEach((body) =>"
        " body.querySelector('button[aria-expanded=false]')?.click())"
    )
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # draws what is not in view, too
    page.wait_for_function("!document.querySelector('[data-figure], [role=img]:not(:has(svg))')")


def test_the_policy_holds(browser: Any, file: Path) -> None:
    opened = chromium.opened(browser, file)
    opened.page.evaluate(
        "const script = document.createElement('script'); script.textContent = 'hacked = 1';"
        "document.body.append(script);"
        "const image = document.createElement('img'); image.src = 'https://example.org/x.png';"
        "document.body.append(image)"
    )
    assert opened.page.evaluate("typeof hacked") == "undefined"
    assert len(opened.problems) == 2
    assert all("Content Security Policy" in problem for problem in opened.problems)
    opened.page.close()


def test_the_answer_is_first_and_details_are_last(every: chromium.Opened) -> None:
    for place, kind in enumerate(every_result()):
        section = every.page.locator("section").nth(place)
        parts = section.evaluate(
            "each => [...each.children].slice(2).map(part => part.className || part.localName)"
        )
        assert parts[0] == "answer", kind
        tables_and_notes = [part for part in parts if part in ("table", "filter", "caution")]
        order = ["answer", *("figure" if part == "div" else part for part in parts)]
        places = {part: place for place, part in enumerate(order)}
        if "figure" in places and tables_and_notes:
            assert places["figure"] > max(places[part] for part in tables_and_notes), kind
        if "details" in order:
            assert set(order[order.index("details") :]) == {"details"}, kind
        assert section.locator("details[open]").count() == 0
        assert section.locator("details .caution").count() == 0


def test_tables_are_sorted_by_mouse_and_by_keyboard(every: chromium.Opened) -> None:
    """By numbers and units, where cells have them."""
    section = every.page.locator("section").nth([*every_result()].index("Measurements"))
    table = section.locator("> .table > table")
    rising = [f"relu {size}" for size in range(1, 13)]  # which take as many µs
    header = table.locator("th").nth(1)
    button = header.get_by_role("button")
    for key, sorting in (("", "ascending"), ("Enter", "descending"), ("Space", "ascending")):
        button.press(key) if key else button.click()
        assert header.get_attribute("aria-sort") == sorting
        names = [each.split("\t")[0] for each in table.locator("tbody tr").all_inner_texts()]
        assert names == (rising if sorting == "ascending" else rising[::-1])
    assert table.locator("[aria-sort]").count() == 1


def test_rows_are_filtered_and_counted_for_screen_readers(every: chromium.Opened) -> None:
    section = every.page.locator("section").nth([*every_result()].index("Measurements"))
    box = section.get_by_label("Filter rows").first
    status = section.get_by_role("status").first
    rows = section.locator("> .table tbody tr")
    assert status.inner_text() == "12 rows"
    box.focus()
    every.page.keyboard.type("RELU 1")
    assert status.inner_text() == "4 of 12 rows"
    shown = [row.inner_text().split("\t")[0] for row in rows.all() if row.is_visible()]
    assert shown == ["relu 1", "relu 10", "relu 11", "relu 12"]
    box.fill("nothing like it")
    assert status.inner_text() == "0 of 12 rows"
    box.fill("")
    assert rows.filter(visible=True).count() == 12


def test_a_row_opens_its_figures_below_it_also_when_sorted(every: chromium.Opened) -> None:
    section = every.page.locator("section").nth([*every_result()].index("Measurements"))
    button = section.get_by_role("button", name="relu 7", exact=True)
    assert section.locator("tbody figure").count() == 0
    button.focus()
    every.page.keyboard.press("Space")
    assert button.get_attribute("aria-expanded") == "true"
    figures = section.locator("tr:has(button[aria-expanded=true]) + tr").locator("[role=img]")
    figures.nth(1).locator("svg").wait_for()
    assert "relu 7. The median is " in (figures.first.get_attribute("aria-label") or "")
    section.get_by_role("button", name="samples").first.click()
    assert figures.count() == 2
    button.press("Enter")
    assert section.locator("tbody figure").count() == 0


def test_every_kind_is_accessible_in_light_and_dark_and_on_a_phone(
    browser: Any, file: Path
) -> None:
    opened = chromium.opened(browser, file, color_scheme="dark")
    assert opened.violations() == []
    open_everything(opened.page)
    assert opened.page.locator("figure svg").count() > 20
    opened.page.emulate_media(color_scheme="light")
    assert opened.violations() == []
    opened.page.set_viewport_size(chromium.PHONE)
    assert opened.violations(color_contrast=False) == []  # colors are those of the desktop
    width = opened.page.evaluate("document.documentElement.scrollWidth")
    assert width == chromium.PHONE["width"]  # tables scroll, the page does not
    opened.page.close()


def test_hostile_names_are_shown_and_never_run(browser: Any, folder: Path) -> None:
    page = page_of_results(every_result(HOSTILE))
    (folder / "hostile.html").write_text(page, encoding="utf-8")
    opened = chromium.opened(browser, folder / "hostile.html")
    open_everything(opened.page)
    assert opened.page.evaluate("typeof hacked") == "undefined"
    assert opened.page.locator("main img").count() == 0
    assert opened.page.locator("script").count() == 3
    assert (opened.problems, opened.requests) == ([], [])
    named = {
        kind
        for place, kind in enumerate(every_result())
        if printable(HOSTILE) in opened.page.locator("section").nth(place).text_content()
    }
    assert {*KINDS} - named == {"ClockTrace", "EngineTable", "Examination", "Explanation"}
    opened.page.close()

"""Pages of results, in Chromium: they work, are accessible, and run nothing from a file."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from common import chromium

from convtime.cli import main
from convtime.core.errors import InputError
from convtime.core.text import printable
from convtime.exchange.files import write_measurements
from convtime.regression.baseline import Baseline
from convtime.reporting.report import write_page
from convtime.storage.load import TYPES
from tests.helpers.every_result import every_result, sampled

pytest.importorskip("vl_convert")

KINDS = ["Measurements", *TYPES]
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
    write_page(every_result(), path)
    return path


@pytest.fixture(scope="module")
def every(browser: Any, file: Path) -> Iterator[chromium.Opened]:
    opened = chromium.opened(browser, file)
    yield opened
    assert opened.problems == []
    assert opened.requests == []


@pytest.fixture
def section(every: chromium.Opened, request: pytest.FixtureRequest) -> Any:
    """The part of the page with the result of a kind."""
    return every.page.locator("section").nth([*every_result()].index(request.param))


def open_everything(page: Any) -> None:
    """Open all details and the first row with figures of each table, and wait for the figures."""
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    page.evaluate(
        "document.querySelectorAll('tbody').forEach((body) =>"
        " body.querySelector('button[aria-expanded=false]')?.click())"
    )
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # draws what is not in view, too
    page.wait_for_function("!document.querySelector('[data-figure], [role=img]:not(:has(svg))')")


# ---- the page ----


def test_the_policy_allows_two_scripts_and_a_style_by_their_hashes(file: Path) -> None:
    page = file.read_text(encoding="utf-8")
    found = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)">', page)
    assert found is not None
    directives = dict(each.split(" ", 1) for each in found[1].split("; "))
    scripts, styles = directives.pop("script-src"), directives.pop("style-src")
    assert directives == dict.fromkeys(("default-src", "base-uri", "form-action"), "'none'")
    for tag, allowed in (("script", scripts), ("style", styles)):
        contents = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [hashlib.sha256(content.encode()).digest() for content in contents]
        assert allowed.split() == [
            f"'sha256-{base64.b64encode(each).decode()}'" for each in digests
        ]
    assert page.count("<script") == 3  # the third is data
    assert not re.search(r"<(link|img|iframe|object)\b", page.partition('id="figures"')[0])


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


@pytest.mark.parametrize("section", KINDS, indirect=True)
def test_the_answer_is_first_and_details_are_last(section: Any) -> None:
    parts = section.evaluate(
        "each => [...each.children].slice(2).map(part => part.className || part.localName)"
    )
    assert parts[0] == "answer"
    tables_and_notes = [part for part in parts if part in ("table", "filter", "caution")]
    order = ["answer", *("figure" if part == "div" else part for part in parts)]
    places = {part: place for place, part in enumerate(order)}
    if "figure" in places and tables_and_notes:
        assert places["figure"] > max(places[part] for part in tables_and_notes)
    if "details" in order:
        assert set(order[order.index("details") :]) == {"details"}
    assert section.locator("details[open]").count() == 0
    assert section.locator("details .caution").count() == 0


@pytest.mark.parametrize("section", KINDS, indirect=True)
def test_tables_are_sorted_by_mouse_and_by_keyboard(section: Any) -> None:
    for table in section.locator("> .table > table:has(thead)").all():
        header = table.locator("th").last
        button = header.get_by_role("button")
        button.click()
        assert header.get_attribute("aria-sort") == "ascending"
        button.press("Enter")
        assert header.get_attribute("aria-sort") == "descending"
        button.press("Space")
        assert header.get_attribute("aria-sort") == "ascending"
        for rising, falling in table.evaluate(_SORT_EACH_COLUMN):
            assert sorted(rising) == sorted(falling)
            assert is_ordered(rising, 1), rising
            assert is_ordered(falling, -1), falling
        assert table.locator("[aria-sort]").count() == 1


#: Click on each header twice; return the columns' cells after each click.
_SORT_EACH_COLUMN = """table => [...table.tHead.rows[0].cells].map((header, column) =>
    [1, 2].map(() => {
        header.querySelector("button").click();
        return [...table.tBodies[0].rows].map((row) => row.cells[column].textContent);
    })
)"""


def is_ordered(cells: list[str], sign: int) -> bool:
    """Whether times, as Python reads them, are in order, and cells without one last."""
    units = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
    found = [re.match(r"([\d.]+) (s|ms|µs|ns)\b", cell) for cell in cells]
    if sum(each is not None for each in found) <= len(cells) / 2:
        return True
    values = [
        math.inf if each is None else sign * float(each[1]) * units[each[2]] for each in found
    ]
    return values == sorted(values)


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
    assert "relu 7. The median is 7.0" in (figures.first.get_attribute("aria-label") or "")
    section.get_by_role("button", name="samples").first.click()
    assert figures.count() == 2
    button.press("Enter")
    assert section.locator("tbody figure").count() == 0


def test_figures_are_drawn_when_they_come_into_view_or_are_printed(
    browser: Any, file: Path
) -> None:
    opened = chromium.opened(browser, file)
    opened.page.locator("figure svg").first.wait_for()
    waiting = opened.page.locator("main > div > section > [data-figure]")
    assert waiting.count() > 5
    waiting.last.scroll_into_view_if_needed()
    opened.page.locator("figure svg").nth(3).wait_for()
    assert waiting.count() > 0
    opened.page.pdf()
    assert waiting.count() == 0
    assert opened.problems == []
    opened.page.close()


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
    write_page(every_result(HOSTILE), folder / "hostile.html")
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


def test_megabytes_and_numbers_that_are_none_are_shown(browser: Any, folder: Path) -> None:
    huge = "x" * (1 << 20)
    odd = sampled("odd", seconds=1.0, count=3)
    odd = dataclasses.replace(odd, seconds=(math.nan, math.inf, 1e-300), flops=math.inf)
    write_page({huge: {huge: sampled(huge), "odd": odd}}, folder / "huge.html")
    assert (folder / "huge.html").stat().st_size < 2e6
    opened = chromium.opened(browser, folder / "huge.html")
    open_everything(opened.page)
    assert "x… (1,048,576 characters)" in opened.page.locator("h1").inner_text()
    assert "nan" in opened.page.locator("tbody tr", has_text="odd").first.inner_text()
    assert opened.problems == []
    opened.page.close()


@pytest.mark.parametrize("pressed", ["button", "p"])
def test_a_figure_that_comes_into_view_while_a_button_is_pressed_takes_no_click(
    browser: Any, file: Path, pressed: str
) -> None:
    opened = chromium.opened(browser, file)
    opened.page.locator("main > div > section > [data-figure]").last.evaluate(
        "(place, pressed) => { place.id = 'place'; place.hidden = true;"
        " const below = document.createElement(pressed); below.append('below');"
        " below.addEventListener('click', () => (below.id = 'clicked')); place.after(below) }",
        pressed,
    )
    place = opened.page.locator("#place")
    opened.page.get_by_text("below", exact=True).hover()
    opened.page.mouse.down()
    # It takes no space before it is drawn; observers are called within two frames.
    place.evaluate(
        "place => new Promise((done) => { place.style.minHeight = '0'; place.hidden = false;"
        " requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))) })"
    )
    if pressed == "button":
        assert place.count() == 1
        opened.page.mouse.up()
        opened.page.locator("#clicked").wait_for()
    place.wait_for(state="detached")  # elsewhere, as on a scroll bar, while it is pressed
    opened.page.close()


# ---- several results ----


def test_two_runs_are_side_by_side_with_verdicts(browser: Any, folder: Path) -> None:
    names = ["same", "slower", "before only"]
    before = {name: sampled(name, count=200) for name in names}
    after = {
        "same": before["same"],
        "slower": sampled(
            "slower", 1.3e-5, count=200, provenance={"gpu": "NVIDIA H200", "torch": "9"}
        ),
        "after only": sampled("after only"),
    }
    write_page({"before.json": before, "after.json": after}, folder / "two.html")
    opened = chromium.opened(browser, folder / "two.html")
    assert opened.page.locator("main > .answer").inner_text().startswith("4 compared: 1 slower")
    rows = opened.page.locator("main > .table").first.locator("tr").all()
    cells = [[cell.inner_text() for cell in row.locator("td").all()] for row in rows[1:]]
    assert {row[0]: row[-1] for row in cells} == {
        "same": "same", "slower": "slower", "before only": "missing", "after only": "new"
    }  # fmt: skip
    ratio = next(float(row[3].split()[0]) for row in cells if row[0] == "slower")
    assert ratio == pytest.approx(1.3, rel=0.02)
    assert "not comparable" not in opened.page.locator("main").inner_text()
    left, right = (each.bounding_box() for each in opened.page.locator("section").all())
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] < right["x"]
    opened.page.close()


def test_what_makes_results_hard_to_compare_is_said(folder: Path) -> None:
    def page_of(*results: Any) -> str:
        write_page(dict(zip("ab", results, strict=True)), folder / "ab.html")
        return (folder / "ab.html").read_text(encoding="utf-8").partition("<section")[0]

    other = sampled("relu", provenance={"gpu": "NVIDIA B200"})
    page = page_of(sampled("relu"), other)
    assert "from different hardware" in page
    assert "NVIDIA H200: a; NVIDIA B200: b" in page
    assert "uncertain" in page
    several = every_result()["Measurements"]
    assert "are not compared: a and b have no name in common" in page_of(
        {"x": sampled("x"), "y": other}, several
    )
    broken = sampled("relu", seconds=math.nan)
    assert "are not compared" in page_of(other, broken)
    unlike = page_of(*(every_result()[kind] for kind in ("Energy", "Recording")))
    assert 'class="caution"' not in unlike


def test_saved_runs_of_one_measurement_keep_their_noise_under_another_name(folder: Path) -> None:
    def saved(title: str, *factors: float) -> Baseline:
        runs = [
            {title: dataclasses.replace(sampled(title), seconds=(factor * 1e-5,) * 40)}
            for factor in factors
        ]
        return Baseline.of(runs, {title: title}, calibrated=len(factors) > 1)

    quiet = saved("one", *(1 + 1e-4 * index for index in range(10)))
    for title in ("one", "renamed"):
        write_page({"a": quiet, "b": saved(title, 1.02)}, folder / "renamed.html")
        summary = (folder / "renamed.html").read_text(encoding="utf-8").partition("<section")[0]
        assert ">slower<" in summary  # by more than the calibrated margin, and less than 3 %


# ---- results and the command ----


@pytest.mark.parametrize("kind", TYPES)
def test_a_result_writes_its_own_page(folder: Path, kind: str) -> None:
    result: Any = every_result()[kind]
    result.report(folder / "own.html")
    page = (folder / "own.html").read_text(encoding="utf-8")
    assert page.count("<section") == page.count("<h1") == 1
    with pytest.raises(InputError, match=r"must end in \.html"):
        result.report(folder / "own.pdf")


def saved(folder: Path) -> Path:
    file = folder / "relu.json"
    sampled("relu").save(file)
    return file


def test_the_command_writes_and_prints_a_page(tmp_path: Path, capsys: Any) -> None:
    file, page = saved(tmp_path), tmp_path / "page.html"
    write_measurements({"a": sampled("a"), "b": sampled("b")}, tmp_path / "two.csv")
    assert main(["report", str(file), str(tmp_path / "two.csv"), "-o", str(page)]) == 0
    assert capsys.readouterr() == ("", "")
    written = page.read_text(encoding="utf-8")
    assert "relu.json" in written
    assert "two.csv" in written
    assert "different schemas" in written
    assert main(["report", str(file), "-o", "-"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("<!doctype html>")
    assert printed.endswith("</html>\n")
    assert "different schemas" not in printed


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        (b"\xff", "not UTF-8"),
        ("[1]", "JSON that begins with '[1]'"),
        ('{"verse": 1}', "the keys 'verse'"),
        ('{"type": "Measurement", "schema": "99.0"}', "of schema '99.0' cannot be read"),
        ('{"type": "Sonnet", "schema": "6.0"}', "JSON of type 'Sonnet'"),
    ],
)
def test_a_bad_file_is_one_sentence(
    tmp_path: Path, capsys: Any, content: str | bytes | None, said: str
) -> None:
    file, page = tmp_path / "bad.json", tmp_path / "page.html"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["report", str(saved(tmp_path)), str(file), "-o", str(page)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"convtime: error: {file}: ")
    assert said in error
    assert error.count("\n") == 1
    assert not page.exists()


def test_a_bad_output_is_one_sentence(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    file = saved(tmp_path)

    def error_of(*arguments: str) -> str:
        assert main(["report", *arguments]) == 2
        error: str = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    assert "required: -o/--output" in error_of(str(file))
    assert "must end in .html" in error_of(str(file), "-o", str(tmp_path / "page.pdf"))
    missing = str(tmp_path / "missing" / "page.html")
    assert "cannot be written" in error_of(str(file), "-o", missing)
    assert "must be named once" in error_of(str(file), str(file), "-o", str(tmp_path / "p.html"))
    page = file.rename(tmp_path / "page.html")
    assert "must name different files" in error_of(str(page), "-o", str(page))
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    for output in (str(tmp_path / "p.html"), "-"):
        assert "run pip install 'convtime[plot]'" in error_of(str(page), "-o", output)

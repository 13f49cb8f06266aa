"""Writing and using a page of 1,000 measurements with 500 samples each, on a CPU.

The samples and clocks are simulated; all other fields are those of one measurement on this machine.

- "written": seconds in which a fresh process reads the file of measurements and writes the page,
  without the imports, and the page's size. The time and the size do not depend on a GPU.
- "opened": the page in Chromium. Interactive is the time from the navigation until a click on a
  header has sorted the table and the browser has drawn it: the longest of several. axe-core looks
  for violations of WCAG 2.1 AA in light and dark and at the width of a phone, after figures and
  details were opened. Errors and warnings of the console count in all of these.
"""

import atexit
import dataclasses
import random
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import results
from common import chromium, running, summaries

MEASUREMENTS, SAMPLES = 1000, 500
OPENED = 5  # times
FILE, PAGE = "measurements.json", "page.html"


def make_cases(_: object) -> dict[str, running.Measure]:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    write_measurements(folder / FILE)
    return {each.__name__: partial(each, folder) for each in (written, opened)}


def write_measurements(file: Path) -> None:
    import torch

    import convtime

    draw = random.Random(0)  # noqa: S311, no secret
    one = convtime.time_op(torch.relu, torch.randn(64), device="cpu", max_samples=50)
    batches = tuple(sample // 50 for sample in range(SAMPLES))
    simulated = {}
    for number in range(MEASUREMENTS):
        name, median = f"tests/test_times.py::test_{number}", 1e-6 * draw.lognormvariate(2, 2)
        seconds = tuple(median * draw.lognormvariate(0, 0.02) for _ in range(SAMPLES))
        clocks = tuple(draw.uniform(1.8e9, 1.98e9) for _ in range(SAMPLES))
        simulated[name] = dataclasses.replace(
            one, name=name, seconds=seconds, batches=batches, sm_clocks_hz=clocks
        )
    convtime.write_measurements(simulated, file)


def written(folder: Path) -> results.Row:
    seconds = running.run_program(
        "import convtime.storage.load",
        "begin = time.perf_counter()",
        "found = convtime.storage.load.load(sys.argv[1])",
        "found.report(sys.argv[2])",
        "result = time.perf_counter() - begin",
        arguments=[folder / FILE, folder / PAGE],
    )
    return {"seconds": seconds, "mb": (folder / PAGE).stat().st_size / 1e6}


def opened(folder: Path) -> results.Row:
    with chromium.launched() as browser:
        seconds = [_sorted_after(browser, folder / PAGE) for _ in range(OPENED)]
        page = chromium.opened(browser, folder / PAGE)
        page.page.locator("tbody button").first.click()
        page.page.locator("tbody figure svg").nth(1).wait_for()
        page.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        light = page.violations()
        page.page.emulate_media(color_scheme="dark")
        dark = page.violations()
        page.page.set_viewport_size(chromium.PHONE)
        return {
            "interactive_s": seconds,
            "violations": light + dark + page.violations(),
            "console": page.problems,
            "requests": page.requests,
            "chromium": browser.version,
        }


def _sorted_after(browser: Any, file: Path) -> float:
    begin = time.perf_counter()
    page = chromium.opened(browser, file).page
    page.locator("th button").nth(1).click()
    page.locator("th[aria-sort=ascending]").wait_for()
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    seconds = time.perf_counter() - begin
    page.close()
    return seconds


def summarise(rows: list[results.Row]) -> dict[str, float]:
    by_key = summaries.by_key(rows)
    summary: dict[str, float] = {}
    if row := by_key.get("written"):
        summary |= {"write_1000_s": row["seconds"], "size_mb": row["mb"]}
    if row := by_key.get("opened"):
        summary["interactive_s"] = max(row["interactive_s"])
        summary["accessibility_violations"] = len(row["violations"])
        summary["console_errors"] = len(row["console"])
    return summary


def table(rows: list[results.Row]) -> str:
    row = summaries.by_key(rows)["opened"]
    lines = [(number, f"{seconds:.2f} s") for number, seconds in enumerate(row["interactive_s"], 1)]
    header = f"opened in Chromium {row['chromium']}: | interactive after:"
    return summaries.markdown(header, lines)


if __name__ == "__main__":
    running.run("report", make_cases, on="cpu")

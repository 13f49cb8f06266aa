"""Makes the pictures of reports in docs/images/report/: one of each kind of result.

    python docs/make_screenshots.py              # takes about a minute, on a CPU
    python docs/make_screenshots.py Comparison   # only this kind

Results that a CPU can give are measured. The others need a GPU, or two versions of torch: they are
made by hand as for the tests, and their titles say so.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import convtime
from convtime import Candidate
from convtime.core.codec import Stored
from convtime.core.files import write_file
from convtime.reporting.report import page_of_results

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import chromium  # noqa: E402

from tests.helpers.every_result import every_result  # noqa: E402

FOLDER = ROOT / "docs" / "images" / "report"
SIZE = {"width": 720, "height": 420}
DARK = ("Comparison",)  # the others are light
QUICK: dict[str, Any] = {"budget": 0.3, "min_samples": 60}


def topk(k: int) -> Candidate:
    return Candidate(torch.topk, torch.randn(64, 1024), k)


def sort(k: int) -> Candidate:  # noqa: ARG001, sorts all
    return Candidate(lambda x: x.sort(1, descending=True), torch.randn(64, 1024))


def repeated_max(k: int) -> Candidate:
    def largest(x: torch.Tensor) -> torch.Tensor:
        for _ in range(k):
            _, index = x.max(1, keepdim=True)
            x = x.scatter(1, index, float("-inf"))
        return x

    return Candidate(largest, torch.randn(64, 1024))


def activations() -> dict[str, Candidate]:
    x = torch.randn(1 << 16)
    names = ("relu", "gelu", "silu", "tanh", "sigmoid", "selu", "mish", "softplus", "elu", "celu")
    return {name: Candidate(getattr(torch.nn.functional, name), x) for name in names}


def run() -> dict[str, convtime.Measurement]:
    return {
        name: convtime.time_op(each.fn, *each.args, name=name, **QUICK)
        for name, each in activations().items()
    }


def three() -> dict[str, Candidate]:
    x = torch.randn(1 << 18)
    return {
        "relu": Candidate(torch.relu, x),
        "clamp": Candidate(functools.partial(torch.clamp, min=0), x),
        "where": Candidate(lambda x: torch.where(x > 0, x, 0), x),
    }


def recorded() -> convtime.Recording:
    net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 9))
    x = torch.randn(64, 256)
    with convtime.record() as recording:
        for _ in range(20):
            with convtime.region("step"):
                with convtime.region("forward"):
                    loss = net(x).sum()
                with convtime.region("backward"):
                    loss.backward()
    return recording


def modules() -> convtime.ModuleTimes:
    net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 9))
    x = torch.randn(64, 256)
    return convtime.time_modules(net, lambda: net(x).sum().backward())


MEASURED: Mapping[str, Callable[[], Stored | dict[str, Stored]]] = {
    "Measurement": lambda: run()["gelu"],
    "Measurements": run,
    "Comparison": lambda: convtime.compare(three(), **QUICK),
    "ComparisonTable": lambda: convtime.compare(
        {"topk": topk, "sort": sort, "repeated max": repeated_max},
        over={"k": [1, 2, 4, 16, 64, 1024]},
        check=None,
    ),
    "Changes": lambda: convtime.compare_runs(run(), run()),
    "Diagnosis": lambda: convtime.diagnose(torch.relu, torch.randn(1 << 18), budget=5),
    "Examination": lambda: convtime.doctor("cpu"),
    "Explanation": lambda: convtime.conv.explain(
        torch.nn.functional.conv2d, torch.randn(1, 16, 28, 28), torch.randn(32, 16, 3, 3)
    ),
    "ModuleTimes": modules,
    "Race": lambda: convtime.race(activations(), check=None),
    "Recording": recorded,
    "Sweep": lambda: convtime.sweep(topk, {"k": [1, 2, 4, 16, 64, 256, 1024]}, **QUICK),
    "two_runs": lambda: {"before.json": run(), "after.json": run()},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="(default: all)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    by_hand = every_result()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium.launched() as browser:
        for kind in options.kinds or dict.fromkeys((*MEASURED, *by_hand)):
            print(kind, flush=True)
            found: Any = MEASURED[kind]() if kind in MEASURED else by_hand[kind]
            title = (
                f"{kind}.json" if kind in MEASURED else f"{kind}.json (not measured: made by hand)"
            )
            page = Path(folder, f"{kind}.html")
            results = found if kind == "two_runs" else {title: found}
            write_file(page, page_of_results(results))
            take_picture(browser, page, FOLDER / f"{kind}.png", "dark" if kind in DARK else "light")


def take_picture(browser: Any, page: Path, picture: Path, scheme: str) -> None:
    """Make a picture of the top of a page, with the first row's figures open if there are any."""
    opened = chromium.opened(browser, page, viewport=SIZE, color_scheme=scheme)
    rows = opened.page.locator("main > div:not(.two) > section > .table tbody button")
    if rows.count():
        rows.first.click()
    opened.page.wait_for_timeout(500)  # for the figures in view
    bottom = opened.page.evaluate("document.querySelector('main').getBoundingClientRect().bottom")
    height = min(bottom + 16, SIZE["height"])
    opened.page.screenshot(
        path=picture, clip={"x": 0, "y": 0, "width": SIZE["width"], "height": height}
    )
    opened.page.close()


if __name__ == "__main__":
    main()

"""The Python examples of the documents, and what documents show that examples print."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import ROOT
from tests.helpers.scripts import load_script

PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    if "```python\n" in path.read_text(encoding="utf-8")
]
#: Sizes and durations that make an example slow without a GPU, and ones with which it is quick.
SMALL = {
    "64, 64, 56, 56": "1, 64, 8, 8",
    "32, 64, 112, 112": "1, 64, 16, 16",
    "[64, 256, 1024]": "[8, 64]",
    "[1, 10, 100]": "[1, 10]",
    "16 << 20": "16 << 8",
    "1 << 22": "1 << 10",
    "65_536, 64": "2_048, 64",
    "steps(2000)": "steps(2)",
    "seconds=2": "seconds=0.1",
    "torch.randn(8, 3, 32, 32": "torch.randn(2, 3, 8, 8",
    "diagnose(torch.relu, x": "diagnose(torch.relu, x, budget=0.5",
}
#: What the first output that a page shows has in it.
PRINTED = {
    "README.md": r"relu: \d",
    "docs/guides/comparing.md": r"clamp .*\n.*abs",
    "docs/guides/convolutions.md": "PyTorch and convtime run the same",
    "docs/guides/sweeps.md": r"gelu +\d+ +float64",
}


@pytest.fixture(scope="module")
def run_examples() -> Any:
    return load_script(ROOT / "docs" / "run_examples.py")


def test_what_examples_print_is_put_behind_them(run_examples: Any) -> None:
    text = (
        "```python\nx = 1\n```\n\n<!-- printed -->\nold\n<!-- /printed -->\n"
        "```python\nprint(x + 1, end=' \\n\\n')\n```\n\n<!-- printed -->\n<!-- /printed -->\n"
        "```python\nprint('not shown')\n```\n"
    )
    once = run_examples.executed(text, "(here)")
    assert once == text.replace("old", "```text\n\n```\n\n(here)").replace(
        "<!-- printed -->\n<!--", "<!-- printed -->\n```text\n2\n\n```\n\n(here)\n<!--"
    )
    assert run_examples.executed(once, "(here)") == once
    with pytest.raises(ZeroDivisionError):
        run_examples.executed("```python\n1 / 0\n```\n", "")


@pytest.mark.thorough
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_example_runs(
    path: Path, run_examples: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = path.read_text(encoding="utf-8")
    if 'device="cuda", dtype' in text and not torch.cuda.is_available():
        pytest.skip("its examples need a GPU")
    for slow, quick in SMALL.items():
        text = text.replace(slow, quick)
    text = text.replace('"examples/tutorial"', repr(str(ROOT / "examples" / "tutorial")))
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    try:
        text = run_examples.executed(text, "")
    finally:
        torch.set_num_threads(threads)
    shown = re.findall(r"<!-- printed -->\n```text\n(.*?)\n```", text, re.DOTALL)
    assert all(shown)
    printed = PRINTED.get(path.relative_to(ROOT).as_posix())
    assert printed is None or re.search(printed, shown[0])


def test_pages_that_show_what_examples_print_and_replacements_are_found(run_examples: Any) -> None:
    found = {path.relative_to(ROOT).as_posix() for path in run_examples.documents()}
    assert set(PRINTED) <= found <= {path.relative_to(ROOT).as_posix() for path in PAGES}
    everything = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert [slow for slow in SMALL if slow not in everything] == []

"""The Python examples of README.md, and what documents show that examples print."""

import importlib.util
import re

import pytest

from tests.helpers import ROOT

pytest.importorskip("convtime")


@pytest.fixture(scope="module")
def run_examples():
    spec = importlib.util.spec_from_file_location("run_examples", ROOT / "docs" / "run_examples.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_examples_print_is_put_behind_them(run_examples):
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


def test_an_example_that_fails_leaves_nothing(run_examples):
    with pytest.raises(ZeroDivisionError):
        run_examples.executed("```python\n1 / 0\n```\n", "")


def test_the_readmes_examples_run(run_examples):
    text = (ROOT / "README.md").read_text()
    assert ROOT / "README.md" in run_examples.documents()
    small = text.replace("64, 64, 56, 56", "1, 64, 8, 8")
    assert small != text
    printed = re.findall(r"```text\n(.*?)```", run_examples.executed(small, ""), re.DOTALL)
    one, compared, explained = printed
    assert re.match(r"relu: \d", one)
    assert "clamp" in compared
    assert "PyTorch and convtime run the same" in explained


def test_the_examples_of_which_number_to_quote_run(run_examples):
    run_examples.executed((ROOT / "docs" / "which-number.md").read_text(), "")

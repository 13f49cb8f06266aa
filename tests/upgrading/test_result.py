import dataclasses
import sys

import pytest

from convtime import cli
from convtime.cli import upgrade as cli_upgrade
from convtime.regression.changes import Change
from convtime.upgrading.result import LayerChange, Upgrade
from tests.helpers.pass_facts import FACTS, SETTINGS

PYTHON = sys.executable
QUICK = ("--device", "cpu")


def example() -> Upgrade:
    change = Change("conv|1 forward", "slower", 1e-3, 2e-3, reproducer="convtime upgrade …")
    slower = LayerChange(("conv|1", "conv2"), "forward", change, 2e-3, FACTS, FACTS)
    same = LayerChange(
        ("relu",),
        "forward",
        Change("relu forward", "same", 1e-3, 1e-3),
        0.0,
        dataclasses.replace(FACTS, memory_bytes=2**20),
        dataclasses.replace(FACTS, memory_bytes=2**24),
        different="the results differ in their bits",
    )
    before, after = SETTINGS, SETTINGS | {"torch": "2.15.0"}
    return Upgrade((slower, same), before, after, margin=0.03, pairs=2)


def test_text_and_markdown_show_changes_other_results_and_settings():
    text, markdown = str(example()), example().to_markdown(["slower"])
    for shown in (text, markdown):
        assert "2.11.0 → 2.15.0" in shown
        assert "and 1 like it" in shown
        assert "+2.000 ms" in shown
        assert "relu forward: the results differ in their bits" in shown
        assert "not compared" not in shown
    assert "conv\\|1" in markdown
    assert markdown.startswith("**failed: conv\\|1 forward (slower)**")
    assert "→ 16 MiB" in example().details()


def test_findings_are_verdicts_and_other_bits():
    assert example().findings == (
        ("conv|1 forward", "slower"),
        ("relu forward", "same"),
        ("relu forward", "different"),
    )
    assert example()["relu forward"].which == "forward"
    backward = dataclasses.replace(example().layers[0], which="backward")
    assert dataclasses.replace(example(), step=(backward,)).step_ratio is None
    with pytest.raises(KeyError, match="was not timed"):
        _ = example()["relu backward"]


def test_nothing_compared_is_an_error(monkeypatch, capsys):
    failed = dataclasses.replace(example(), layers=(), failures=("0 forward: out of memory",))
    monkeypatch.setattr(cli_upgrade, "upgrade", lambda *_, **__: failed)
    command = ["upgrade", "--old", PYTHON, "--new", PYTHON, "conv2d:n1c1h4w4k1r1s1", *QUICK]
    assert cli.main(command) == 2
    assert "nothing was compared: 0 forward: out of memory" in capsys.readouterr().err

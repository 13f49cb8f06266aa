from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import convtime
from convtime.integrations import progress
from convtime.timing.measurement import Measurement
from convtime.timing.options import BatchRecord
from convtime.timing.sampling import measure as sampling
from convtime.view.progress import ProgressBar

pytest.importorskip("IPython")
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

QUICK = "--device cpu --stop count --min-samples 8 --max-samples 8 --warmup 1"
FEW: dict[str, Any] = {"device": "cpu", "stop": "count", "min_samples": 5, "max_samples": 5}


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.run_line_magic("load_ext", "convtime")
    shell.user_ns |= {"torch": torch, "x": torch.randn(100)}
    yield shell
    shell.run_line_magic("unload_ext", "convtime")
    InteractiveShell.clear_instance()


def run(shell: InteractiveShell, code: str) -> Any:
    """What a cell evaluates to."""
    done = shell.run_cell(code)
    done.raise_error()
    return done.result


def told(shell: InteractiveShell, code: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed of a cell that fails."""
    capsys.readouterr()
    assert not shell.run_cell(code).success
    printed = capsys.readouterr()
    return printed.err + printed.out


def test_a_line_is_timed_and_shown_or_given_back(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shell, f"%time_op {QUICK} torch.relu(x)") is None
    shown = capsys.readouterr().out
    assert "torch.relu(x)" in shown
    assert "µs" in shown
    run(shell, f"one = %time_op -o --method cpu --name 'a relu' {QUICK} torch.relu(x)")
    one = shell.user_ns["one"]
    assert isinstance(one, Measurement)
    assert (one.name, one.method, one.warmup_requested) == ("a relu", "cpu", 1)
    assert len(one.seconds) == 8
    assert capsys.readouterr().out == ""


def test_a_cell_is_timed_and_leaves_the_variables_alone(shell: InteractiveShell) -> None:
    seen: list[str] = []
    shell.user_ns["seen"] = seen
    before = shell.user_ns["x"]
    one = run(shell, f"%%time_op -o {QUICK} seen.append('setup')\nx = x + 1\nseen.append('call')")
    assert seen == ["setup"] + ["call"] * (len(one.seconds) + one.warmup_calls)
    assert shell.user_ns["x"] is before


def test_statements_keep_their_quotes_spaces_and_variables(shell: InteractiveShell) -> None:
    for rest, value in {
        "keep(table['a b'])": 1,
        "keep(len('--cache  x'))": 10,
        "-- -1 and keep(2)": 2,
        "--before 'table[\"c\"] = 3' keep(table['c'])": 3,
        "--name=a keep(4)": 4,
    }.items():
        found: list[object] = []
        shell.user_ns |= {"table": {"a b": 1}, "keep": found.append}
        run(shell, f"%time_op -o {QUICK} {rest}")
        assert set(found) == {value}
    run(
        shell,
        "def g():\n    inner = 5\n"
        f"    one = %time_op -o --name inner {QUICK} inner\n    return one\nfound = g()",
    )
    assert shell.user_ns["found"].name == "inner"


def test_wrong_use_is_one_line(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    for code, sentence in {
        "%time_op": "the statement is empty",
        "%time_op --cach warm x": "unrecognized arguments: --cach",
        "%time_op --cache lukewarm x": "--cache: invalid choice: 'lukewarm'",
        "%time_op --name 'a x": "invalid quotes",
        "%time_op x +": "is not valid Python",
        "%time_op --method kernel x + 1": "CPU",
        "%%time_op --stop verdict\nx": "verdict",
        "%%compare\nx\n": "each candidate must begin with a line such as '## relu', got none",
        "%%compare\n## a\nx\n## a\nx\n": "must have a name of its own, got 'a'",
        "%%compare x\n## a\nx\n": "statements must be in the cell, got 'x' on the first line",
        "%%compare --seed 1\n## a\nx\n": "--seed requires --over",
        "%%compare --over n=1\n## a\nx\n": "--over needs at least two statements",
        "%%compare --bogus\n## a\nx\n": "unrecognized arguments: --bogus; see %compare?",
    }.items():
        printed = told(shell, code, capsys)
        assert sentence in printed
        assert printed.startswith("UsageError: ")
        assert len(printed.strip().splitlines()) == 1
    printed = told(shell, "%time_op torch.relu(y)", capsys)  # what a statement raises
    assert "NameError" in printed
    assert "Traceback" in printed


def test_the_options_are_documented_and_unloading_takes_everything_away(
    shell: InteractiveShell,
) -> None:
    magic = shell.find_line_magic("time_op")
    assert magic is not None
    assert "%time_op [options] statement" in str(magic.__doc__)
    assert "--max-samples" in str(magic.__doc__)
    assert shell.find_cell_magic("time_op")
    shell.run_line_magic("unload_ext", "convtime")
    assert not shell.find_line_magic("time_op")
    assert not shell.find_cell_magic("time_op")
    assert sampling._watcher is None
    shell.run_line_magic("load_ext", "convtime")


@pytest.mark.thorough
def test_figures_are_shown_as_specifications_and_as_pictures(shell: InteractiveShell) -> None:
    pytest.importorskip("vl_convert")
    one = convtime.time_op(int, **FEW)
    compared = convtime.compare([int, float], **FEW)
    for figure in (one.plot_samples(), compared.plot()):
        shown, told = shell.display_formatter.format(figure)
        assert shown["application/vnd.vegalite.v5+json"] == figure.spec
        width, height = struct.unpack(">II", shown["image/png"][16:24])
        assert told["image/png"] == {"width": width // 2, "height": height // 2}


def test_details_are_tables_in_a_notebook_and_lines_in_a_terminal(shell: InteractiveShell) -> None:
    details = convtime.time_op(int, **FEW).details()
    shown, _ = shell.display_formatter.format(details)
    assert shown["text/plain"] == details
    assert shown["text/html"].count("<table")


@pytest.mark.thorough
def test_a_cell_is_compared_over_axes(shell: InteractiveShell) -> None:
    quick = f"{QUICK.replace('8', '30')} --no-interference"
    cell = "y = torch.ones(n)\n## first\ny + 1\n## other one\nz = y + x[:1]\nz + 1\n"
    run(shell, f"%%compare -o --over n=4,8 {quick}\n{cell}")
    table = shell.user_ns["_"]
    assert isinstance(table, convtime.ComparisonTable)
    names = [f"{name} n={n}" for n in (4, 8) for name in ("first", "other one")]
    assert list(table.measurements) == names
    run(shell, f"%%compare -o {quick}\nn = 4\n{cell}")
    compared = shell.user_ns["_"]
    assert isinstance(compared, convtime.Comparison)
    assert list(compared.measurements) == ["first", "other one"]
    assert "n" not in shell.user_ns


class Bar:
    """Replaces the bar of a timing."""

    def __init__(self, _total: float, **options: Any) -> None:
        self.options, self.closed = options, False
        self.steps: list[tuple[str, float]] = []

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def update(self, description: str, completed: float) -> None:
        self.steps.append((description, completed))


def test_timings_have_a_bar_while_the_extension_is_loaded(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[Bar] = []

    def made(*items: Any, **options: Any) -> Bar:
        bars.append(Bar(*items, **options))
        return bars[-1]

    monkeypatch.setattr(progress, "ProgressBar", made)
    convtime.time_op(int, **FEW | {"max_samples": 50}, warmup=5)
    (bar,) = bars
    assert bar.options["delay"] == progress.SHOWN_AFTER_SECONDS
    assert bar.closed
    assert bar.steps[-1] == ("sampling", pytest.approx(1))
    assert [n for _, n in bar.steps] == sorted(n for _, n in bar.steps)
    records: list[BatchRecord] = []
    convtime.time_op(int, **FEW, log=records.append)
    assert len(bars) == 1
    assert records
    convtime.compare([int, float], **FEW)
    assert len(bars) == 2

    def fail(*_: object, **_changes: object) -> None:
        raise BrokenPipeError("no reader")

    with monkeypatch.context() as patch:
        patch.setattr(Bar, "update", fail)
        with pytest.raises(BrokenPipeError):
            convtime.time_op(int, **FEW)
    shell.run_line_magic("unload_ext", "convtime")
    assert convtime.time_op(int, **FEW).seconds
    assert len(bars) == 3
    shell.run_line_magic("load_ext", "convtime")


def test_the_bar_of_a_timing_shows_the_phase_and_nothing_in_short_timings(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    convtime.time_op(int, **FEW)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "SHOWN_AFTER_SECONDS", 0)
    monkeypatch.setattr(progress, "_REDRAWN_AFTER_SECONDS", 0)
    convtime.time_op(int, **FEW | {"max_samples": 50}, warmup=5)
    assert "sampling" in capsys.readouterr().err


class ZMQInteractiveShell:
    """The shell of a notebook, by which rich knows one."""


def test_in_a_notebook_bars_are_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipywidgets")
    import builtins

    from IPython.core import display_functions

    shown: list[Any] = []
    monkeypatch.setattr(display_functions, "display", shown.append)
    monkeypatch.setattr("IPython.display.display", shown.append)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    with ProgressBar(2, "point") as bar:
        bar.update(advance=1, description="first")
        (widget,) = (each for each in shown if type(each).__name__ == "Output")
        assert widget.comm is not None
    assert widget.comm is None
    shown.clear()
    with ProgressBar(2, "point", shown=False) as bar:
        bar.update(advance=1)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with ProgressBar(2, "point") as bar:
        bar.update(advance=1)
    assert not shown


@pytest.mark.thorough
def test_convtime_needs_no_ipython() -> None:
    code = (
        "import sys\nsys.modules['IPython'] = None\nimport convtime\n"
        "convtime.time_op(int, stop='count', max_samples=20, device='cpu')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

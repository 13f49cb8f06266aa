"""Progress bars on a terminal, and where there is none."""

import io
import sys

import pytest

from convtime.view.progress import ProgressBar, tracked


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace standard error; not in a fixture, after which pytest's capture sets its own."""
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_a_bar_shows_steps_of_a_unit_and_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with ProgressBar(3, "point") as bar:
        assert "0/3 point" in terminal.getvalue()
        bar.update(description="[bold]first", advance=1)
        assert "[bold]first" in terminal.getvalue()  # names are no markup
        assert "1/3 point" in terminal.getvalue()
        bar.update(completed=2, total=4)
        assert "2/4 point" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # it disappears


def test_a_bar_is_hidden_while_something_else_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with ProgressBar(3, "pass") as bar:
        with bar.hidden():
            before = terminal.getvalue()
            assert before.endswith("\x1b[2K")
        assert "0/3 pass" in terminal.getvalue().removeprefix(before)


def test_a_bar_is_drawn_after_its_delay_and_not_more_often_than_its_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    with ProgressBar(3, delay=1000) as bar:
        bar.update(advance=1)
    assert terminal.getvalue() == ""
    with ProgressBar(3, "step", interval=1000) as bar:
        bar.update(advance=1)
        assert "1/3" not in terminal.getvalue()


def test_without_a_terminal_a_bar_is_shown_on_request_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")  # which many CI systems set
    monkeypatch.setenv("NO_COLOR", "1")
    assert list(tracked([1, 2], "plan")) == [1, 2]
    assert capsys.readouterr() == ("", "")
    assert list(tracked([1, 2], "plan", description="all", shown=True)) == [1, 2]
    shown = capsys.readouterr()
    assert "all" in shown.err
    assert "/2 plan" in shown.err
    assert shown.out == ""
    monkeypatch.setattr(sys, "stderr", None)
    with ProgressBar(3) as bar:
        bar.update(advance=1)


def test_on_a_terminal_a_bar_can_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with ProgressBar(3, shown=False) as bar:
        bar.update(advance=1)
        with bar.hidden():
            pass
    assert terminal.getvalue() == ""

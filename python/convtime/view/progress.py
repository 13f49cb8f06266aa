"""Progress bars, on terminals and in notebooks."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_Item = TypeVar("_Item")


class ProgressBar:
    """A progress bar on standard error that disappears when it ends.

    It is drawn in updates only: a thread that draws it would disturb timings. In a notebook it
    needs ipywidgets, and is hidden without.

    Args:
        total: the number of steps; None until an update knows it.
        unit: what a step is. Without, neither steps nor the remaining time are shown.
        shown: whether to show it. Default: on a terminal and in a notebook.
        delay: seconds after which it is first drawn.
        interval: seconds between two drawings, at least.
    """

    def __init__(
        self,
        total: float | None = None,
        unit: str = "",
        *,
        shown: bool | None = None,
        delay: float = 0.0,
        interval: float = 0.0,
    ) -> None:
        console = Console(stderr=True, force_terminal=True)
        if console.is_jupyter:
            can_be_shown = importlib.util.find_spec("ipywidgets") is not None
        else:
            can_be_shown = bool(shown or (sys.stderr and sys.stderr.isatty()))
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *([MofNCompleteColumn(), TextColumn(unit)] if unit else []),
            TimeElapsedColumn(),
            *([TimeRemainingColumn()] if unit else []),
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=shown is False or not can_be_shown,
        )
        self._task = self._progress.add_task("", total=total)
        self._interval = interval
        self._next_drawing = time.monotonic() + delay

    def __enter__(self) -> ProgressBar:
        self.update()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.live.stop()

    def update(self, **changes: Any) -> None:
        """Change the ``description``, ``total`` or ``completed`` steps, or ``advance`` by some."""
        is_due = time.monotonic() >= self._next_drawing
        if is_due:
            self._progress.start()
            self._next_drawing = time.monotonic() + self._interval
        self._progress.update(self._task, refresh=is_due, **changes)

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the bar while something else is printed."""
        self._progress.live.stop()
        yield
        self._progress.start()


def tracked(
    items: Sequence[_Item], unit: str, *, description: str = "", shown: bool | None = None
) -> Iterator[_Item]:
    """Yield items, and show a progress bar in the meantime."""
    with ProgressBar(len(items), unit, shown=shown) as bar:
        bar.update(description=description)
        for item in items:
            yield item
            bar.update(advance=1)

"""Progress bars for timings, in notebooks and terminals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from convtime.timing.options import BatchRecord, Options
from convtime.view.progress import ProgressBar

#: Shorter timings show no bar.
SHOWN_AFTER_SECONDS = 1.0
# The bar is updated between batches, but a notebook then uses CPU time to display it.
_REDRAWN_AFTER_SECONDS = 0.5


@contextlib.contextmanager
def progress_bar(options: Options) -> Iterator[Callable[[BatchRecord], object]]:
    """Show a bar for a timing, as its ``log``; it disappears when the timing ends.

    It shows the used share of the budget or of the samples. Most timings end before 100 %.
    """
    with ProgressBar(
        1.0, shown=True, delay=SHOWN_AFTER_SECONDS, interval=_REDRAWN_AFTER_SECONDS
    ) as bar:
        used_seconds = 0.0
        used_rounds = 0
        most_rounds = options.stop_rule()["max_samples"]

        def log(record: BatchRecord) -> None:
            nonlocal used_seconds, used_rounds
            if record.number == 1:  # numbers restart if two regimes are timed
                used_seconds = 0.0
                used_rounds = 0
            if record.phase == "sampling":
                used_seconds += record.wall_seconds
                used_rounds += record.rounds
            used = max(
                used_seconds / max(float(options.budget), 1e-9),
                used_rounds / max(most_rounds, 1),
            )
            bar.update(description=record.phase, completed=min(used, 1.0))

        yield log

"""Progress bars for timings, in notebooks and terminals."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

from convtime.results.batch_record import BatchRecord
from convtime.timing.options import Options

with warnings.catch_warnings():
    # A notebook without ipywidgets gets a bar of text, and need not be told each time.
    warnings.simplefilter("ignore")
    from tqdm.auto import tqdm

#: A shorter timing shows no bar.
SHOWN_AFTER_SECONDS = 1.0
# The bar is drawn between batches, but what a notebook then does to show it takes time of the CPU.
_REDRAWN_AFTER_SECONDS = 0.5


@contextlib.contextmanager
def progress_bar(options: Options) -> Iterator[Callable[[BatchRecord], object]]:
    """A bar for a timing, as the ``log`` of it; it is gone when the timing is over.

    It shows which part of the budget, or of the samples, is used up; most timings end before that.
    """
    with tqdm(
        total=1.0,
        leave=False,
        delay=SHOWN_AFTER_SECONDS,
        mininterval=_REDRAWN_AFTER_SECONDS,
        bar_format="{desc} |{bar}| {elapsed}",
    ) as bar:
        used_seconds = 0.0
        used_rounds = 0
        most_rounds = options.stop_rule()["max_samples"]

        def log(record: BatchRecord) -> None:
            nonlocal used_seconds, used_rounds
            if record.number == 1:  # again where two regimes are timed
                used_seconds = 0.0
                used_rounds = 0
            bar.set_description_str(record.phase, refresh=False)
            if record.phase == "sampling":
                used_seconds += record.wall_seconds
                used_rounds += record.rounds
            used = max(
                used_seconds / max(float(options.budget), 1e-9),
                used_rounds / max(most_rounds, 1),
            )
            bar.update(min(used, 1.0) - bar.n)

        yield log

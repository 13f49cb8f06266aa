"""Samples in the forms of other tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas
    import torch.utils.benchmark


def to_frame(name: str, seconds: Sequence[float], discarded: Sequence[float]) -> pandas.DataFrame:
    """Samples as a data frame with the columns name, sample, seconds and discarded.

    Raises:
        ImportError: where pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "Measurement.to_frame needs pandas; install it with pip install 'convtime[frame]'"
        ) from error
    return pandas.DataFrame(
        {
            "name": name,
            "sample": [*range(len(seconds)), *range(len(discarded))],
            "seconds": [*seconds, *discarded],
            "discarded": [False] * len(seconds) + [True] * len(discarded),
        }
    )


def to_torch(
    seconds: Sequence[float],
    *,
    name: str,
    label: str,
    sub_label: str,
    description: str,
    threads: int,
) -> torch.utils.benchmark.Measurement:
    """Samples as PyTorch's own kind of measurement; ``label`` and so on are its TaskSpec's."""
    from torch.utils import benchmark  # slow to import, and prints a warning without a GPU

    return benchmark.Measurement(
        number_per_run=1,
        raw_times=list(seconds),
        task_spec=benchmark.TaskSpec(
            stmt=name,
            setup="",
            label=label,
            sub_label=sub_label,
            description=description,
            num_threads=threads,
        ),
    )

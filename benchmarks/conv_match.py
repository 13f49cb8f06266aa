"""Whether convtime's convolutions are PyTorch's: plan, kernels, bits, time and memory of each pass.

A row with "passes" is a problem; its "problem" is the call, layouts and flags included. PyTorch's
plans come from its own log in a child process, which waits while this process times. Kernels are
CUPTI's records of timed calls; both sides take turns, with a cold L2 cache. "kernels" are
PyTorch's, each [name, grid, block]; "convtime_kernels" is null where convtime's are the same. "ns"
are the samples, in nanoseconds; sample i of both is from the same round. Rows with "host" are times
of the host for one call; the row with "memory" is what many shapes leave behind.

A problem that PyTorch itself refuses has "error" instead of passes. What was not run is counted in
the table.
"""

from __future__ import annotations

import results
from conv_match_parts import report
from conv_match_parts.summary import summarise

__all__ = ["summarise", "table"]

PROBLEMS = 660  # of conv_problems.all_calls(), which needs torch


def table(rows: list[results.Row]) -> str:
    return report.table(rows, PROBLEMS)


def main() -> None:
    from conv_match_parts.run import run
    from conv_problems import all_calls

    run("conv_match", __doc__, all_calls, ["match", "host", "memory"])


if __name__ == "__main__":
    main()

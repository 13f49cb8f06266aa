"""Whether convtime's convolutions are PyTorch's: plan, kernels, bits, time and memory of each pass.

A row with "passes" is a problem; its "problem" is the call, layouts and flags included. Beside the
three passes of cuDNN there are "gradients", all of them in one call, and "autograd", forward and
backward by autograd. PyTorch's plans come from its own log in a child process, which waits while
this process times. Kernels are CUPTI's records of timed calls; both sides take turns, with a cold
L2 cache. "kernels" are PyTorch's, each [name, grid, block]; "convtime_kernels" is null where
convtime's are the same. "ns" are the samples, in nanoseconds; sample i of both is from the same
round. Results are compared in memory that was full of NaN before. "second_thread" is a call of
convtime's in a thread that did not select the plan, but builds it from engine and knobs: then it is
"rebuilt". Keys that begin with "mode-b" were measured in a process whose heuristics are cuDNN's
mode B.

A row with "searches" is a problem under cudnn.benchmark, in a process whose PyTorch writes its log:
"candidates" are the plans that PyTorch timed, "convtime_candidates" is null where convtime timed
the same in the same order; bits and kernels are those of PyTorch's fastest plan on both sides.
"again_tag" is what PyTorch finds in another thread. Rows with "host" are times of the host for one
call, on two sets of tensors by turns; the row with "memory" is what many shapes leave behind.

A problem that PyTorch itself refuses has "error" instead of passes. What was not run is counted in
the table.
"""

import functools

from conv_match_parts import report
from conv_match_parts.report import summarise
from conv_match_parts.rows import MODE_B, MODE_B_PROBLEMS, SEARCHED_PROBLEMS, SEARCHES

__all__ = ["summarise", "table"]

# conv_problems.all_calls(), which needs torch, has the first number.
PROBLEMS = 777 + MODE_B_PROBLEMS + SEARCHED_PROBLEMS


table = functools.partial(report.table, problems=PROBLEMS)


if __name__ == "__main__":
    from conv_match_parts.run import run
    from conv_problems import all_calls

    run("conv_match", __doc__, all_calls, ["match", MODE_B, SEARCHES, "host", "memory"])

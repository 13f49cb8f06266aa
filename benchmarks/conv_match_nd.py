"""conv_match for all but plain 2-D: one and three dimensions, and transposed convolutions.

"fprop" is the forward pass, "dgrad" the input's gradient and "wgrad" the weight's, also of
transposed convolutions, which cuDNN knows as the gradients of others: their tags tell.
"""

import functools

from conv_match_parts import report
from conv_match_parts.report import summarise

__all__ = ["summarise", "table"]

PROBLEMS = 398  # of conv_problems_nd.all_calls(), which needs torch


table = functools.partial(report.table, problems=PROBLEMS)


if __name__ == "__main__":
    from conv_match_parts.run import run
    from conv_problems_nd import all_calls

    run("conv_match_nd", __doc__, all_calls, ["match"])

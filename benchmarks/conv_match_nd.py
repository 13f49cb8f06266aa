"""conv_match for all but plain 2-D: one and three dimensions, and transposed convolutions.

"fprop" is the forward pass, "dgrad" the input's gradient and "wgrad" the weight's, also of
transposed convolutions, which cuDNN knows as the gradients of others: their tags tell.
"""

import functools

import conv_match
from conv_match import summarise

__all__ = ["summarise", "table"]

# problems_nd.all_calls(), which needs torch, has so many.
table = functools.partial(conv_match.table, problems=398)


if __name__ == "__main__":
    from common.running import run
    from conv_match.__main__ import match_cases
    from conv_match.problems_nd import all_calls

    run("conv_match_nd", functools.partial(match_cases, all_calls()))

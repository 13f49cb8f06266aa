"""conv_match for all but plain 2-D: one and three dimensions, and transposed convolutions.

"fprop" is the forward pass, "dgrad" the input's gradient and "wgrad" the weight's, also of
transposed convolutions, which cuDNN knows as the gradients of others: their tags tell.
"""

from __future__ import annotations

import conv_match
import results

PROBLEMS = 358  # of conv_problems_nd.all_problems(), which needs torch

summarise = conv_match.summarise


def table(rows: list[results.Row]) -> str:
    """Markdown, as conv_match's."""
    return conv_match.table(rows, PROBLEMS)


def main() -> None:
    from conv_problems_nd import all_problems

    conv_match.run("conv_match_nd", __doc__, all_problems, ["match"])


if __name__ == "__main__":
    main()

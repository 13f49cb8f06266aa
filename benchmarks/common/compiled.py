"""PyTorch's compiler."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def compile_whole(function: Callable[Arguments, Result], mode: str) -> Callable[Arguments, Result]:
    """In one piece, for one shape; what autotuning finds is not printed, a table a product."""
    from torch._inductor import config

    config.autotune_num_choices_displayed = 0
    config.max_autotune_report_choices_stats = False
    compile_: Any = torch.compile
    compiled: Callable[Arguments, Result] = compile_(
        function, mode=mode, fullgraph=True, dynamic=False
    )
    return compiled

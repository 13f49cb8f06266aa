"""The cuDNN plans that convtime's convolutions have selected."""

from __future__ import annotations

from convtime.conv.plan_choice import PlanChoice
from convtime.core import codec
from convtime.core.load import _C


def plan_cache() -> tuple[PlanChoice, ...]:
    """Return the plans selected so far in this process, the most recently used last.

    All threads share the choices; each thread builds its own plans from them. The cache holds
    10,000 choices, or TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT if that is larger; the least recently used
    are dropped. A convolution has several choices if one thread could not use the plan of the
    others, most likely because memory ran out.
    """
    return tuple(codec.decode(PlanChoice, record) for record in _C.plan_cache())


def clear_plan_cache() -> None:
    """Drop every choice and every plan: the next call of each convolution selects again.

    CUDA graphs that were captured before keep the plans that they need.
    """
    _C.clear_plan_cache()

"""The cuDNN plans that convtime's convolutions have selected."""

from __future__ import annotations

from convtime.core import codec
from convtime.core.load import _C
from convtime.results.plan import PlanChoice


def plan_cache() -> tuple[PlanChoice, ...]:
    """What was selected so far in this process, the most recently used last.

    All threads share the choices; each builds its own plans of them. There are at most 10,000, or
    as many as TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT allows if that is more; the ones that were not
    used for longest are dropped. A convolution has several where one thread could not use the plan
    that the others do, for want of memory most likely.
    """
    return tuple(codec.decode(PlanChoice, record) for record in _C.plan_cache())


def clear_plan_cache() -> None:
    """Forgets every choice and every plan: the next call of each convolution selects anew.

    CUDA graphs that were captured before keep the plans that they need.
    """
    _C.clear_plan_cache()

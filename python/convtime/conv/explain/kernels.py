"""What the kernels of a convolution are for, by their names."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable

from convtime.results.activity import DeviceActivity

MAIN = "main kernel"
LAYOUT = "layout conversion"
PADDING = "padding"
BIAS = "bias"
ELEMENTWISE = "elementwise"
UNFOLDING = "unfolding (im2col)"
REDUCTION = "reduction"
COPY = "copy"
FILLING = "filling"
OTHER = "other"

# The first that is found in a kernel's name says what it is for. A helper's name may have the word
# of a main kernel in it, as in reduce_wgrad_nchw_helper: helpers are looked for first.
_ROLES = tuple(
    (role, re.compile(pattern, re.IGNORECASE))
    for role, pattern in (
        (
            LAYOUT,
            r"n(chw|hwc)To(Folded)?n(chw|hwc)|foldedNhwcTo|tensorTransform|genericTranspose",
        ),
        (PADDING, r"AddPadding|SliceC|constant_?pad|reflection_pad|replication_pad"),
        (UNFOLDING, r"im2col|col2im|vol2col|vol2im"),
        (REDUCTION, r"splitKreduce|ReduceSplitK|reduce_wgrad|_nhwc_reduce$|\breduce_kernel"),
        (BIAS, r"CUDAFunctor_add|AddBias|add_?bias|biasAdd"),
        (COPY, r"direct_copy_kernel|CatArray|convertTensor"),
        (FILLING, r"FillFunctor|setTensor|scale(Packed)?Tensor|init_device_workspace"),
        (ELEMENTWISE, r"elementwise_kernel"),
        (
            MAIN,
            r"conv|[fdw](prop|grad)|gemm|gemv|nvjet|cutlass|winograd|fft[12]d|flip_filter|"
            r"precompute_indices",
        ),
    )
)
_BETWEEN_NCHW_AND_NHWC = re.compile(r"nchwToNhwc|nhwcToNchw")


@dataclasses.dataclass(frozen=True)
class Part:
    """What of a call's time goes into one thing.

    Attributes:
        role: what it is, e.g. :data:`LAYOUT`.
        seconds: the medians of its kernels, copies and memsets, added up.
        names: their short names, in order, each as often as it runs.
        between_nchw_and_nhwc: of a layout conversion: all of it is between these two.
    """

    role: str
    seconds: float
    names: tuple[str, ...]
    between_nchw_and_nhwc: bool = False


def parts(activities: Iterable[DeviceActivity]) -> list[Part]:
    """What a call's time goes into, the most of it first."""
    found: dict[str, list[DeviceActivity]] = {}
    for activity in activities:
        found.setdefault(role_of(activity), []).append(activity)
    made = [
        Part(
            role=role,
            seconds=math.fsum(activity.median for activity in members),
            names=tuple(activity.short_name for activity in members),
            between_nchw_and_nhwc=role == LAYOUT
            and all(_BETWEEN_NCHW_AND_NHWC.search(activity.name) for activity in members),
        )
        for role, members in found.items()
    ]
    return sorted(made, key=lambda part: part.seconds, reverse=True)


def role_of(activity: DeviceActivity) -> str:
    """What a kernel, copy or memset is for; :data:`OTHER` where its name does not tell."""
    if activity.kind != "kernel":
        return {"memcpy": COPY, "memset": FILLING}.get(activity.kind, OTHER)
    matching = (role for role, pattern in _ROLES if pattern.search(activity.name))
    return next(matching, OTHER)

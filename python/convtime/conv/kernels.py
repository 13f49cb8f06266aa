"""Classify the kernels of a convolution by their names."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable

from convtime.timing.activity import DeviceActivity

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

# The first pattern found in a kernel's name decides its role. Helpers come first, because their
# names can contain the word of a main kernel, as in reduce_wgrad_nchw_helper.
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
class RoleShare:
    """The share of a call's time with one role.

    Attributes:
        role: the role, e.g. :data:`LAYOUT`.
        seconds: the sum of the median times of its kernels, copies and memsets.
        names: the short names in launch order, repeated for each launch.
        between_nchw_and_nhwc: for a layout conversion: whether all its kernels convert between
            these two.
    """

    role: str
    seconds: float
    names: tuple[str, ...]
    between_nchw_and_nhwc: bool = False


def shares_by_role(activities: Iterable[DeviceActivity]) -> list[RoleShare]:
    """Divide a call's time by role, the largest part first."""
    by_role: dict[str, list[DeviceActivity]] = {}
    for activity in activities:
        by_role.setdefault(role_of(activity), []).append(activity)
    shares = (
        RoleShare(
            role=role,
            seconds=math.fsum(activity.median for activity in members),
            names=tuple(activity.short_name for activity in members),
            between_nchw_and_nhwc=role == LAYOUT
            and all(_BETWEEN_NCHW_AND_NHWC.search(activity.name) for activity in members),
        )
        for role, members in by_role.items()
    )
    return sorted(shares, key=lambda share: share.seconds, reverse=True)


def role_of(activity: DeviceActivity) -> str:
    """Return the role of a kernel, copy or memset; :data:`OTHER` if its name is not recognized."""
    if activity.kind != "kernel":
        return {"memcpy": COPY, "memset": FILLING}.get(activity.kind, OTHER)
    matching = (role for role, pattern in _ROLES if pattern.search(activity.name))
    return next(matching, OTHER)

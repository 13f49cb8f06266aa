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

# Templates whose argument says what runs, and not their own name.
_WRAPPERS = re.compile(r"Kernel2?|(unrolled_|vectorized_)?elementwise_kernel(_with_index)?")
_FUNCTOR = re.compile(r"\b\w*(?:Functor\w*|_kernel_cuda|_functor)\b")
_TOO_GENERAL = re.compile(r"kernel(_helper_stage_\d+)?|Kernel2?")
# What follows the tile in the names of cuDNN's and cuBLAS's kernels.
_BEHIND_THE_TILE = re.compile(r"(_tilesize[\dx]+).*")
_MANGLED_NAME = re.compile(r"(\d{1,4})([A-Za-z_])")


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
            names=tuple(short_name(activity) for activity in members),
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


def short_name(activity: DeviceActivity) -> str:
    """A kernel's name without return type, namespaces, arguments and what follows its tile."""
    if activity.kind != "kernel":
        return activity.kind
    name = activity.name
    if name.startswith("_ZN"):
        return _short_mangled_name(name)
    function, arguments = _split(name.replace("(anonymous namespace)::", ""))
    scope, _, base = function.rpartition(" ")[2].rpartition("::")
    if _WRAPPERS.fullmatch(base) and arguments:
        functor = _FUNCTOR.search(arguments)
        inner = functor[0] if functor else _split(arguments)[0].rpartition("::")[2]
        if base.startswith("Kernel"):
            return inner or base
        return f"{base}, {inner}" if functor else base
    if _TOO_GENERAL.fullmatch(base) and scope:
        base = f"{scope.rpartition('::')[2]}::{base}"
    return _BEHIND_THE_TILE.sub(r"\1", base) or name


def _split(name: str) -> tuple[str, str]:
    """A function's qualified name, with its return type; and its template arguments."""
    depth = 0
    outside: list[str] = []
    inside: list[str] = []
    for character in name:
        if depth == 0 and character in "(,":
            break
        depth -= character == ">"
        (inside if depth else outside).append("" if character in "<>" and not depth else character)
        depth += character == "<"
    return "".join(outside), "".join(inside)


def _short_mangled_name(name: str) -> str:
    """Of a mangled template such as cutlass::Kernel<…>, what it is a template of; else its name."""
    found, place = [], 0
    while match := _MANGLED_NAME.search(name, place):
        place = match.start(2) + int(match[1])
        found.append(name[match.start(2) : place])
    if "Kernel" in found:
        found = [part for part in found[found.index("Kernel") + 1 :] if part[0].isupper()]
        return found[0] if found else "Kernel"
    return max(found, key=len, default=name)

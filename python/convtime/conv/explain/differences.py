"""List the differences between the plans, kernels and results of PyTorch and convtime."""

from __future__ import annotations

from collections.abc import Iterator

from convtime.conv.explain.explanation import Side
from convtime.conv.show_plan import in_words
from convtime.timing.activity import same_launches


def differences(pytorch: Side, convtime: Side, *, bits_differ: bool) -> Iterator[str]:
    """Describe each difference between PyTorch and convtime in one sentence.

    Args:
        pytorch: PyTorch's side.
        convtime: convtime's side.
        bits_differ: Whether the results differ although PyTorch's own result is reproducible.
    """
    theirs, ours = pytorch.plan, convtime.plan
    if theirs is not None and ours is not None:
        for name in (
            "tag", "workspace_bytes", "numerical_notes", "behavior_notes", "x", "w", "y",
            "compute_type", "padding", "stride", "dilation",
        ):  # fmt: skip
            their_value, our_value = getattr(theirs, name), getattr(ours, name)
            if their_value != our_value and None not in (their_value, our_value):
                yield (
                    f"{name}: PyTorch has {in_words(their_value)}, convtime {in_words(our_value)}"
                )
    elif pytorch.no_plan != convtime.no_plan:
        yield (
            f"the plans cannot be compared: PyTorch's is {_tag_or_why(pytorch)}, convtime's "
            f"{_tag_or_why(convtime)}"
        )
    if not same_launches(pytorch.kernels, convtime.kernels):
        yield (
            f"the kernels, {len(pytorch.kernels)} of PyTorch and {len(convtime.kernels)} of "
            "convtime, differ in count, name, grid or block"
        )
    if bits_differ:
        yield "the results differ in their bits, and PyTorch's own do not"


def _tag_or_why(side: Side) -> str:
    return side.plan.tag if side.plan is not None else side.no_plan

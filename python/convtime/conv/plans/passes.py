"""The passes of convolutions whose plans are to be chosen."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable

from convtime.conv.binding import BoundCall, WatchedConvolutions, prepare
from convtime.conv.call import FPROP, PASSES, ConvCall, Flags, TensorLayout
from convtime.conv.plan_choice import PlanChoice, TensorDescriptor
from convtime.conv.plans.plan_set import Operand, PlanProblem
from convtime.core.checks import require
from convtime.core.errors import InputError, first_line
from convtime.timing.candidate import Candidate

_ALIGNED = 32  # bytes: the largest alignment that cuDNN is told


@dataclasses.dataclass(frozen=True)
class ConvPass:
    """A pass of a convolution.

    Attributes:
        name: Where it occurs.
        count: How often it occurs there.
        call: The convolution, without its bias.
        pass_name: "fprop", "dgrad" or "wgrad", named after their results.
    """

    name: str
    count: int
    call: ConvCall
    pass_name: str

    def __str__(self) -> str:
        return f"{self.name} {self.pass_name}"


def passes_of_call(candidate: Candidate, passes: Collection[str] | None) -> list[ConvPass]:
    """Return the distinct convolutions that a call runs, and their passes.

    The call is made once.

    Args:
        candidate: the call.
        passes: names of passes. None: the forward pass, and for tensors that require gradients,
            theirs.

    Raises:
        InputError: the call fails, or runs no convolution on a GPU.
    """
    calls: list[tuple[ConvCall, str]] = []

    def take(bound: BoundCall) -> None:
        if bound.input.device.type == "cuda" and bound.input.numel():
            _tensors, call = prepare(bound, "tune")
            wanted = bound.passes() if passes is None else passes
            calls.extend((call, name) for name in PASSES if name in wanted)

    try:
        with WatchedConvolutions(take):
            candidate.fn(*candidate.args, **candidate.kwargs)
    except Exception as error:
        raise InputError(
            f"{candidate.name} cannot be tuned: it raised {first_line(error)}"
        ) from error
    require(calls, f"{candidate.name} cannot be tuned: it runs no convolution on a GPU")
    return distinct_passes(calls)


def passes_of_choices(choices: Iterable[PlanChoice | ConvPass]) -> list[ConvPass]:
    """Return the passes that :func:`convtime.conv.plan_cache` lists; passes stay as they are."""
    passes: list[ConvPass] = []
    for choice in choices:
        if isinstance(choice, ConvPass):
            passes.append(choice)
        elif choice.activation == "identity" and choice.z is None and choice.b is None:
            passes.append(pass_of(choice, name=f"{choice.uses} calls"))
    return passes


def distinct_passes(calls: Iterable[tuple[ConvCall, str]]) -> list[ConvPass]:
    """Return the distinct ones of calls and their passes, without their biases."""
    counts = collections.Counter(
        (dataclasses.replace(call, problem=dataclasses.replace(call.problem, bias=False)), name)
        for call, name in calls
    )
    return [
        ConvPass(call.problem.label, count, call, name) for (call, name), count in counts.items()
    ]


def pass_of(problem: PlanProblem | PlanChoice, name: str = "", count: int = 1) -> ConvPass:
    """Return the pass that asks for the plan of a problem."""
    x, w, y = map(_layout, (problem.x, problem.w, problem.y))
    flags = dataclasses.replace(
        Flags.current(),
        deterministic=problem.deterministic,
        deterministic_algorithms=False,  # which would make every problem deterministic
        allow_tf32=problem.allow_tf32,
    )
    call = ConvCall.of_layouts(
        problem.dtype,
        x,
        w,
        y if problem.pass_name != FPROP else None,
        flags=flags,
        groups=x.sizes[1] // w.sizes[1],
        stride=problem.stride,
        padding=problem.padding,
        dilation=problem.dilation,
    )
    return ConvPass(name or call.problem.label, count, call, problem.pass_name)


def _layout(operand: Operand | TensorDescriptor | None) -> TensorLayout:
    assert operand is not None  # convtime knows all operands of its plans
    # PyTorch reports alignments of up to 32 bytes; the next smaller one is not a multiple of more.
    misalignment = operand.alignment if operand.alignment < _ALIGNED else 0
    return TensorLayout(operand.sizes, operand.strides, misalignment)

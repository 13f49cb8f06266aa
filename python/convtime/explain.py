"""What PyTorch runs for a 2-D convolution and why, next to what convtime runs for it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import html
import inspect
import math
import re
import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from tabulate import tabulate
from torch.nn import functional as F

import convtime
from convtime import ops
from convtime._json import with_tuples
from convtime.comparison import Comparison, Ratio, compare
from convtime.conv_problem import (
    DGRAD,
    FPROP,
    WGRAD,
    ConvProblem,
    ConvTensors,
    Flags,
    TensorLayout,
    backward_pass,
    in_fresh_thread,
    same_bits,
)
from convtime.measurement import Measurement, format_seconds
from convtime.plan_oracle import Descriptor, PlanLog, PlanOracle
from convtime.provenance import provenance

SCHEMA = 1

_REPEATS = 5
_KNOB = re.compile(r"_k(\d+)=(-?\d+)")


@dataclasses.dataclass(frozen=True)
class Plan:
    """A cuDNN execution plan, and what cuDNN was told when it was chosen.

    Attributes:
        tag: Operation, engine and knobs, e.g. "ConvFwd_eng38_k2=8_k13=1".
        engine: The engine's index among those of the operation.
        knobs: Value by type of knob, both cuDNN's numbers.
        source: How it was selected: "heuristic" or "benchmark" for PyTorch; for convtime the list
            that it is from: "instant", "fallback", "benchmark" or "explicit".
        numerical_notes: cuDNN's names, less their common beginning; so are behavior_notes.
        workspace_bytes: What the plan needs beside its tensors.
        refused: The plans that came before it and could not be used, with why where it is known.
        x: The input's descriptor; None where it is not known. So are w, and y, the output's.
        compute_type: cuDNN's name in lower case, e.g. "float"; None where it is not known.
        padding: (vertical, horizontal); so are stride and dilation. None where it is not known.
    """

    tag: str
    engine: int
    knobs: Mapping[int, int]
    source: str
    numerical_notes: tuple[str, ...]
    behavior_notes: tuple[str, ...]
    workspace_bytes: int
    refused: tuple[str, ...]
    x: Descriptor | None
    w: Descriptor | None
    y: Descriptor | None
    compute_type: str | None
    padding: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    dilation: tuple[int, ...] | None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Reverses dataclasses.asdict, also after JSON has made lists and texts of its parts."""
        fields = with_tuples(data)
        fields["knobs"] = {int(knob): value for knob, value in fields["knobs"].items()}
        for name in ("x", "w", "y"):
            if fields[name] is not None:
                fields[name] = Descriptor(**with_tuples(fields[name]))
        return cls(**fields)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel, copy or memset of a call.

    Attributes:
        kind: "kernel", "memcpy" or "memset".
        name: The kernel's name; empty for the others.
        grid: Blocks of the launch, in x, y and z.
        block: Threads of a block, in x, y and z.
        seconds: The median of its durations.
    """

    kind: str
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    seconds: float

    def __str__(self) -> str:
        if self.kind != "kernel":
            return f"{self.kind}, {format_seconds(self.seconds)}"
        grid, block = ("×".join(map(str, sizes)) for sizes in (self.grid, self.block))
        return f"{self.name}, grid {grid}, block {block}, {format_seconds(self.seconds)}"


@dataclasses.dataclass(frozen=True)
class Side:
    """What one of the two, PyTorch or convtime, does for a pass.

    Attributes:
        plan: The cuDNN plan; None where there is none, or where it is not known.
        no_plan: Why there is no plan; empty where there is one.
        kernels: What the device does, in order; empty on a CPU.
        seconds: The median time of a call.
        method: What that time is: see convtime.Measurement.
    """

    plan: Plan | None
    no_plan: str
    kernels: tuple[Kernel, ...]
    seconds: float
    method: str

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Side:
        """Reverses dataclasses.asdict, also after JSON has made lists of the tuples."""
        fields = dict(data)
        if fields["plan"] is not None:
            fields["plan"] = Plan.from_dict(fields["plan"])
        fields["kernels"] = tuple(Kernel(**with_tuples(one)) for one in fields["kernels"])
        return cls(**fields)


@dataclasses.dataclass(frozen=True)
class PassExplanation:
    """One pass, as PyTorch and as convtime run it.

    Attributes:
        name: "fprop", "dgrad" (the input's gradient) or "wgrad" (the weight's).
        backend: What PyTorch chooses, by the name of its ConvBackend, e.g. "Cudnn".
        why: Why PyTorch chooses that, a sentence.
        pytorch: What PyTorch does.
        convtime: What convtime does.
        ratio: convtime's time over PyTorch's, from calls that took turns.
        verdict: What the ratio's interval says: see convtime.Comparison.verdict.
        bit_identical: Both results are the same bits.
        pytorch_repeats: PyTorch's own further calls give the same bits as its first.
        differences: Everything that is not the same in what the two run, a sentence each; times,
            which never are the same, aside. Empty: they run the same.
    """

    name: str
    backend: str
    why: str
    pytorch: Side
    convtime: Side
    ratio: Ratio
    verdict: str
    bit_identical: bool
    pytorch_repeats: bool
    differences: tuple[str, ...]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PassExplanation:
        """Reverses dataclasses.asdict, also after JSON has made lists of the tuples."""
        fields = with_tuples(data)
        for who in ("pytorch", "convtime"):
            fields[who] = Side.from_dict(fields[who])
        return cls(**fields | {"ratio": Ratio(**fields["ratio"])})

    def rows(self) -> list[tuple[str, str, str, str]]:
        """What is shown of the two sides: (what, PyTorch's, "≠" where that differs, convtime's)."""
        theirs, ours = (
            {one.name: one for one in _facts(side)} for side in (self.pytorch, self.convtime)
        )
        rows = []
        for name in dict.fromkeys((*theirs, *ours)):
            one, other = theirs.get(name, _NO_FACT), ours.get(name, _NO_FACT)
            compared = (one.compared, other.compared)
            differs = None not in compared and compared[0] != compared[1]
            rows.append((name, one.text, "≠" if differs else "", other.text))
        return rows


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation:
    """What PyTorch and convtime run for a convolution; see :func:`explain`.

    Attributes:
        problem: The convolution: dtype, layouts, parameters and torch's flags.
        device: Where it ran, e.g. "cuda:0".
        policy: convtime's selection policy; None: as torch.backends.cudnn.benchmark says.
        passes: Forward first, then those of the backward pass.
        provenance: Hardware, software and source state (see convtime.provenance).
    """

    problem: ConvProblem
    device: str
    policy: str | None
    passes: tuple[PassExplanation, ...]
    provenance: Mapping[str, Any]

    @property
    def backend(self) -> str:
        """What PyTorch chooses for the forward pass, e.g. "Cudnn"."""
        return self.passes[0].backend

    @property
    def why(self) -> str:
        """Why PyTorch chooses that, a sentence."""
        return self.passes[0].why

    @property
    def differences(self) -> tuple[str, ...]:
        """Those of all passes; empty: PyTorch and convtime run the same."""
        return tuple(f"{one.name}: {text}" for one in self.passes for text in one.differences)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, with a schema version."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Explanation:
        """Reverses :meth:`to_dict`.

        Raises:
            ValueError: for another schema version.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(
                f"an explanation of schema {data.get('schema')!r} cannot be read, only of schema "
                f"{SCHEMA}; read it with the convtime that wrote it"
            )
        fields = {name: value for name, value in data.items() if name != "schema"}
        fields["problem"] = ConvProblem.from_dict(fields["problem"])
        fields["passes"] = tuple(map(PassExplanation.from_dict, fields["passes"]))
        return cls(**fields)

    def __str__(self) -> str:
        parts = [f"<convtime.Explanation {self._title()}"]
        for one in self.passes:
            table = tabulate(
                one.rows(),
                ("", "PyTorch", "", "convtime"),
                tablefmt="plain",
                disable_numparse=True,
                maxcolwidths=[None, 60, None, 60],
            )
            parts.append(f"  {one.name}: {one.backend}: {one.why}")
            parts.append(textwrap.indent(table, "    "))
            parts += [f"    {line}" for line in _verdict_lines(one)]
        return "\n".join(parts) + ">"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def cell(kind: str, text: str) -> str:
            escaped = html.escape(text).replace("\n", "<br>")
            return f"<{kind} style='text-align:left'>{escaped}</{kind}>"

        def line(kind: str, texts: tuple[str, ...]) -> str:
            return f"<tr>{''.join(cell(kind, text) for text in texts)}</tr>"

        parts = [f"<p>{html.escape(self._title())}</p>"]
        for one in self.passes:
            body = "".join(line("td", row) for row in one.rows())
            caption = html.escape(f"{one.name}: {one.backend}: {one.why}")
            items = "".join(f"<li>{html.escape(text)}</li>" for text in _verdict_lines(one))
            heading = line("th", ("", "PyTorch", "", "convtime"))
            parts.append(
                f"<table><caption>{caption}</caption>{heading}{body}</table><ul>{items}</ul>"
            )
        return "".join(parts)

    def _title(self) -> str:
        problem = self.problem
        shapes = " by ".join("×".join(map(str, one.sizes)) for one in (problem.x, problem.w))
        told = [f"conv2d of {shapes}", problem.dtype, self.device]
        for name, usual in (("stride", (1, 1)), ("padding", (0, 0)), ("dilation", (1, 1))):
            if getattr(problem, name) != usual:
                told.append(f"{name} {'×'.join(map(str, getattr(problem, name)))}")
        if problem.groups > 1:
            told.append(f"groups {problem.groups}")
        if problem.bias:
            told.append("bias")
        if self.policy:
            told.append(f"policy {self.policy}")
        return ", ".join(told)


def explain(
    fn: Callable[..., object],
    *args: Any,
    backward: bool | None = None,
    budget: float = 0.3,
    **kwargs: Any,
) -> Explanation:
    """Says what PyTorch runs for a 2-D convolution, and what convtime runs for it.

    Which plan PyTorch takes from cuDNN is found out in a child process (see
    convtime.plan_oracle), which takes some seconds to start.

    Args:
        fn: torch.nn.functional.conv2d, convtime.ops.conv2d, a torch.nn.Conv2d or a
            convtime.nn.Conv2d.
        args: Its positional arguments: the input, of shape (N, C, H, W) or (C, H, W), and for a
            function the weight and so on. float16, bfloat16, float32 or float64, on a CPU or a GPU.
        backward: Whether the gradients' passes are explained too: dgrad and wgrad. Unless given,
            those that input and weight ask for by requires_grad.
        budget: Seconds for timing each pass.
        kwargs: Its keyword arguments, convtime's ``policy`` among them.

    Raises:
        TypeError: for something that is no 2-D convolution.
        ValueError: for a device or dtype that is not supported, or a backward that is no bool. What
            PyTorch says of arguments that do not fit passes through.
    """
    if backward is not None and not isinstance(backward, bool):
        raise ValueError(f"backward must be True, False or None, got {backward!r}")
    _check_function(fn)
    fn(*args, **kwargs)  # PyTorch's own errors come first
    call = _bind(fn, args, kwargs)
    tensors, problem = _prepare(call)
    device = tensors.x.device
    passes = [FPROP, *_backward_passes(call, backward)]
    # As the op does outside of autocast, which has been seen to.
    with torch.autocast(device.type, enabled=False), PlanOracle(device) as oracle:
        if passes != [FPROP]:
            tensors, problem = _with_grad_output(tensors, problem)
        found = tuple(
            _explain_pass(name, problem, tensors, call.policy, oracle, budget) for name in passes
        )
    return Explanation(problem, str(device), call.policy, found, provenance(device))


@dataclasses.dataclass(frozen=True)
class _Call:
    """The arguments of F.conv2d, and convtime's policy."""

    input: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None
    stride: ops.Pair = 1
    padding: ops.Pair | str = 0
    dilation: ops.Pair = 1
    groups: int = 1
    policy: str | None = None


_FUNCTIONS = (
    torch.conv2d,  # which F.conv2d is
    torch.ops.aten.conv2d,
    ops.conv2d,
    torch.ops.convtime.conv2d,
)


def _check_function(fn: object) -> None:
    if isinstance(fn, torch.nn.Conv2d) or any(fn is one for one in _FUNCTIONS):
        return
    hint = ""
    if isinstance(fn, torch.nn.Module):
        inside = sum(isinstance(one, torch.nn.Conv2d) for one in fn.modules())
        if inside:
            hint = f"; it has {inside} Conv2d inside, which can be explained one by one"
    name = getattr(fn, "__name__", type(fn).__name__)
    raise TypeError(
        "explain takes torch.nn.functional.conv2d, convtime.ops.conv2d, a torch.nn.Conv2d or a "
        f"convtime.nn.Conv2d, and {name} is none of them{hint}"
    )


def _bind(fn: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Call:
    if isinstance(fn, torch.nn.Conv2d):
        return _bind_module(fn, *args, **kwargs)
    return _Call(**inspect.signature(_Call).bind(*args, **kwargs).arguments)


def _bind_module(module: torch.nn.Conv2d, input: torch.Tensor) -> _Call:
    padding: ops.Pair | str = module.padding
    if module.padding_mode != "zeros":
        input = F.pad(input, module._reversed_padding_repeated_twice, mode=module.padding_mode)
        padding = 0
    policy = getattr(module, "policy", None)  # of convtime.nn.Conv2d
    return _Call(
        input,
        module.weight,
        module.bias,
        module.stride,
        padding,
        module.dilation,
        module.groups,
        policy,
    )


def _prepare(call: _Call) -> tuple[ConvTensors, ConvProblem]:
    """The call as PyTorch's selection sees it: four dimensions, cast, with padding as numbers."""
    if call.input.device.type not in ("cpu", "cuda"):
        raise ValueError(f"explain works on a CPU or a GPU, got a tensor on {call.input.device}")
    tensors = [call.input if call.input.dim() == 4 else call.input.unsqueeze(0), call.weight]
    if call.bias is not None:
        tensors.append(call.bias)
    x, w, *bias = (_autocast(one) for one in tensors)
    if x.dtype not in ops.DTYPES:
        raise ValueError(f"explain: the dtype must be one of {ops.DTYPES}, got {x.dtype}")
    stride, dilation = _pair(call.stride), _pair(call.dilation)
    if isinstance(call.padding, str):
        padding, surplus = ops.resolve_padding("explain", w.shape, stride, call.padding, dilation)
        x = ops.pad_end(x, surplus)
    else:
        padding = _pair(call.padding)
    problem = ConvProblem(
        dtype=str(x.dtype).removeprefix("torch."),
        x=TensorLayout.of(x),
        w=TensorLayout.of(w),
        bias=bool(bias),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=call.groups,
        flags=Flags.current(),
    )
    return ConvTensors(x, w, *bias), problem


def _autocast(tensor: torch.Tensor) -> torch.Tensor:
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


def _pair(numbers: ops.Pair) -> tuple[int, int]:
    vertical, *horizontal = numbers if isinstance(numbers, Sequence) else (numbers,)
    return int(vertical), int(horizontal[0] if horizontal else vertical)


def _backward_passes(call: _Call, backward: bool | None) -> Iterator[str]:
    for name, tensor in ((DGRAD, call.input), (WGRAD, call.weight)):
        wanted = torch.is_grad_enabled() and tensor.requires_grad if backward is None else backward
        if wanted:
            yield name


def _with_grad_output(
    tensors: ConvTensors, problem: ConvProblem
) -> tuple[ConvTensors, ConvProblem]:
    with torch.no_grad():
        output = problem.pytorch_call(FPROP, tensors)()
        grad_output = torch.randn_like(output)
    return (
        dataclasses.replace(tensors, grad_output=grad_output),
        dataclasses.replace(problem, grad_output=TensorLayout.of(grad_output)),
    )


def convtime_call(
    problem: ConvProblem, pass_name: str, tensors: ConvTensors, policy: str | None = None
) -> Callable[[], torch.Tensor]:
    """The call of a pass by convtime, without arguments: ConvProblem.pytorch_call's counterpart.

    A policy that names an engine is the forward pass's alone.
    """
    if pass_name == FPROP:
        return functools.partial(
            ops.conv2d,
            tensors.x,
            tensors.w,
            tensors.bias,
            problem.stride,
            problem.padding,
            problem.dilation,
            problem.groups,
            policy=policy,
        )
    wanted = backward_pass(pass_name)
    arguments = (
        tensors.grad_output, tensors.x, tensors.w, problem.stride, problem.padding,
        problem.dilation, problem.groups, [one == wanted for one in range(3)],
    )  # fmt: skip
    policy = policy if policy in ("heuristic", "benchmark") else None
    backward = torch.ops.convtime.conv2d_backward
    return lambda: cast("torch.Tensor", backward(*arguments, policy=policy)[wanted])


def compare_bits(
    theirs: Callable[[], torch.Tensor], first: torch.Tensor, ours: torch.Tensor
) -> tuple[bool, bool]:
    """Whether convtime's result has the bits of PyTorch's first, and whether PyTorch repeats them.

    Where the two differ, PyTorch is called several times more: a kernel that adds up in no fixed
    order may well give the same bits twice.
    """
    identical = same_bits(first, ours)
    calls = 1 if identical else _REPEATS
    return identical, all(same_bits(first, theirs()) for _ in range(calls))


def _explain_pass(
    name: str,
    problem: ConvProblem,
    tensors: ConvTensors,
    policy: str | None,
    oracle: PlanOracle,
    budget: float,
) -> PassExplanation:
    theirs = problem.pytorch_call(name, tensors)
    ours = convtime_call(problem, name, tensors, policy)
    mode = contextlib.nullcontext() if name == FPROP else torch.no_grad()
    with mode:
        backend = problem.backend(name, tensors)
        identical, repeats = compare_bits(theirs, theirs(), ours())
        comparison = compare(
            {"pytorch": theirs, "convtime": ours}, device=tensors.x.device, budget=budget
        )
    pytorch = _side(comparison, "pytorch", *_pytorch_plan(backend, oracle, problem, name))
    convtime = _side(comparison, "convtime", *_convtime_plan(backend, ours, problem, name, tensors))
    return PassExplanation(
        name=name,
        backend=backend,
        why=why(backend, problem, tensors),
        pytorch=pytorch,
        convtime=convtime,
        ratio=comparison.ratio("convtime"),
        verdict=comparison.verdict("convtime"),
        bit_identical=identical,
        pytorch_repeats=repeats,
        differences=tuple(differences(pytorch, convtime, bits_differ=repeats and not identical)),
    )


def _side(comparison: Comparison, who: str, plan: Plan | None, no_plan: str) -> Side:
    measurement = comparison.measurements[who]
    return Side(plan, no_plan, kernels_of(measurement), measurement.median, measurement.method)


def kernels_of(measurement: Measurement) -> tuple[Kernel, ...]:
    """What the device does in a measured call, in order."""
    return tuple(
        Kernel(
            one.kind,
            one.name,
            one.grid,
            one.block,
            statistics.median(seconds for seconds in one.seconds if seconds is not None),
        )
        for one in measurement.activities
    )


_NOT_CUDNN = "PyTorch does not give this pass to cuDNN"


def _pytorch_plan(
    backend: str, oracle: PlanOracle, problem: ConvProblem, name: str
) -> tuple[Plan | None, str]:
    if backend != "Cudnn":
        return None, _NOT_CUDNN
    log = oracle.ask(problem, [name])[name]
    if log.chosen is None:
        return None, f"not known: {log.unknown}"
    return _plan_of_log(log), ""


def _plan_of_log(log: PlanLog) -> Plan:
    assert log.chosen is not None
    return Plan(
        tag=log.chosen.tag,
        engine=_engine(log.chosen.tag),
        knobs={int(knob): int(value) for knob, value in _KNOB.findall(log.chosen.tag)},
        source=log.source,
        numerical_notes=log.chosen.numerical_notes,
        behavior_notes=log.chosen.behavior_notes,
        workspace_bytes=log.chosen.workspace_bytes,
        refused=log.refused,
        x=log.x,
        w=log.w,
        y=log.y,
        compute_type=log.compute_type,
        padding=log.padding,
        stride=log.stride,
        dilation=log.dilation,
    )


def _engine(tag: str) -> int:
    match = re.search(r"_eng(\d+)", tag)
    if match is None:
        raise ValueError(f"a plan's tag must name an engine (_eng and a number), got {tag!r}")
    return int(match[1])


def _convtime_plan(
    backend: str,
    call: Callable[[], torch.Tensor],
    problem: ConvProblem,
    name: str,
    tensors: ConvTensors,
) -> tuple[Plan | None, str]:
    if backend != "Cudnn":
        return None, _NOT_CUDNN
    # A thread that has no built plan yet looks its choice up, and so makes it the last one used.
    in_fresh_thread(call, tensors.x.device)
    for choice in reversed(convtime.plan_cache()):
        if _is_choice_for(choice, problem, name):
            return plan_of_choice(choice), ""
    return None, "convtime.plan_cache() has no choice for this problem"


def _is_choice_for(choice: convtime.PlanChoice, problem: ConvProblem, name: str) -> bool:
    parameters = (problem.stride, problem.padding, problem.dilation)
    return (
        choice.pass_name == name
        and str(choice.dtype).removeprefix("torch.") == problem.dtype
        and tuple(choice.x.sizes) == problem.x.sizes
        and tuple(choice.w.sizes) == problem.w.sizes
        and (tuple(choice.stride), tuple(choice.padding), tuple(choice.dilation)) == parameters
    )


_DATA_TYPES = {"float16": "half", "bfloat16": "bfloat16", "float32": "float", "float64": "double"}


def plan_of_choice(choice: convtime.PlanChoice) -> Plan:
    """An entry of convtime.plan_cache(), in the form that is compared with PyTorch's plan."""
    data_type = _DATA_TYPES[str(choice.dtype).removeprefix("torch.")]

    def descriptor(tensor: Any) -> Descriptor:
        return Descriptor(tuple(tensor.sizes), tuple(tensor.strides), tensor.alignment, data_type)

    return Plan(
        tag=choice.tag,
        engine=choice.engine,
        knobs=dict(choice.knobs),
        source=choice.source,
        numerical_notes=_short(choice.numerical_notes),
        behavior_notes=_short(choice.behavior_notes),
        workspace_bytes=choice.workspace_bytes,
        refused=tuple(choice.refused),
        x=descriptor(choice.x),
        w=descriptor(choice.w),
        y=descriptor(choice.y),
        compute_type=None,
        padding=tuple(choice.padding),
        stride=tuple(choice.stride),
        dilation=tuple(choice.dilation),
    )


def _short(notes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(re.sub(r"^CUDNN_(NUMERICAL|BEHAVIOR)_NOTE_", "", note) for note in notes)


def differences(pytorch: Side, convtime: Side, *, bits_differ: bool) -> Iterator[str]:
    """What is not the same in what the two run, a sentence each.

    Args:
        pytorch: PyTorch's side.
        convtime: convtime's side.
        bits_differ: Whether the results differ although PyTorch's own do not.
    """
    theirs, ours = pytorch.plan, convtime.plan
    if theirs is not None and ours is not None:
        for name in (
            "tag", "workspace_bytes", "numerical_notes", "behavior_notes", "x", "w", "y",
            "compute_type", "padding", "stride", "dilation",
        ):  # fmt: skip
            one, other = getattr(theirs, name), getattr(ours, name)
            if one != other and None not in (one, other):
                yield f"{name}: PyTorch has {_text(one)}, convtime {_text(other)}"
    elif pytorch.no_plan != convtime.no_plan:
        yield (
            f"the plans cannot be compared: PyTorch's is {_tag_or_why(pytorch)}, convtime's "
            f"{_tag_or_why(convtime)}"
        )
    # Sorted: groups run on several streams at once, and which kernel is first varies.
    launches = [sorted(map(_launch, side.kernels)) for side in (pytorch, convtime)]
    if launches[0] != launches[1]:
        yield (
            f"the kernels, {len(launches[0])} of PyTorch and {len(launches[1])} of convtime, "
            "differ in count, name, grid or block"
        )
    if bits_differ:
        yield "the results differ in their bits, and PyTorch's own do not"


def _tag_or_why(side: Side) -> str:
    return side.plan.tag if side.plan is not None else side.no_plan


def why(backend: str, problem: ConvProblem, tensors: ConvTensors) -> str:
    """Why PyTorch's selection gives this backend, in one sentence.

    After ATen's native/Convolution.cpp; the backend itself comes from PyTorch's own function.
    """
    flags, on_gpu = problem.flags, tensors.x.is_cuda
    depthwise = problem.x.sizes[1] == problem.groups > 1
    no_cudnn = "" if flags.enabled else "torch.backends.cudnn.enabled is off"
    if "Empty" in backend:
        return "a tensor without elements leaves nothing to compute"
    if backend == "CudaDepthwise2d":
        return f"each channel is its own group, and {no_cudnn or _why_not_depthwise(problem)}"
    if backend == "Cudnn" and depthwise:
        return f"each channel is its own group, and {_why_depthwise(problem, tensors)}"
    if backend == "Cudnn":
        return "the tensors are on a GPU and nothing rules cuDNN out"
    if on_gpu:
        return f"{no_cudnn or 'cuDNN cannot take this problem'}, so PyTorch's own kernels run"
    if backend == "Mkldnn":
        return "the tensors are on a CPU and oneDNN takes their dtype and sizes"
    return "the tensors are on a CPU, and PyTorch prefers this to oneDNN for their dtype and sizes"


def _why_not_depthwise(problem: ConvProblem) -> str:
    kernel = problem.flags.depthwise_kernel
    if kernel not in (None, "auto"):
        return f"torch.backends.cudnn.depthwise_kernel is {kernel!r}"
    beginning = "with contiguous tensors PyTorch uses cuDNN for such only "
    if problem.dtype != "float16":
        return f"{beginning}in float16, not {problem.dtype}"
    if problem.dilation != (1, 1):
        return f"{beginning}without dilation, not with {problem.dilation}"
    if problem.stride[0] != problem.stride[1] and problem.x.sizes[2] != 1:
        return f"{beginning}with equal strides, not {problem.stride}"
    if problem.x.sizes[1] < 32:
        return f"{beginning}from 32 channels on, not with {problem.x.sizes[1]}"
    return f"{beginning}for some combinations of kernel size, width, stride, channels and batch"


def _why_depthwise(problem: ConvProblem, tensors: ConvTensors) -> str:
    kernel = problem.flags.depthwise_kernel
    if kernel not in (None, "auto"):
        return f"torch.backends.cudnn.depthwise_kernel is {kernel!r}"
    if any(
        one.is_contiguous(memory_format=torch.channels_last) and not one.is_contiguous()
        for one in (tensors.x, tensors.w)
    ):
        return "with channels_last tensors PyTorch uses cuDNN for such"
    return (
        "in float16 PyTorch uses cuDNN for this kernel size, width, stride, channels and batch of "
        "such"
    )


@dataclasses.dataclass(frozen=True)
class _Fact:
    """A line of a side: its text, and what has to be the same on the other; None: nothing."""

    name: str
    text: str
    compared: object = None


_NO_FACT = _Fact("", "–", "")


def _facts(side: Side) -> Iterator[_Fact]:
    def shown(name: str, value: object) -> _Fact:
        return _Fact(name, _text(value), value)

    plan = side.plan
    if plan is None:
        yield shown("plan", f"none: {side.no_plan}")
    else:
        yield shown("plan", plan.tag)
        yield shown("engine", plan.engine)
        yield shown("knobs", plan.knobs)
        yield _Fact("selected by", plan.source)
        yield shown("numerical notes", plan.numerical_notes)
        yield shown("behavior notes", plan.behavior_notes)
        yield _Fact("workspace", f"{plan.workspace_bytes:,} bytes", plan.workspace_bytes)
        yield _Fact("refused plans", _text(plan.refused))
        for name in ("x", "w", "y", "compute_type", "padding", "stride", "dilation"):
            yield shown(name.replace("_", " "), getattr(plan, name))
    for index, kernel in enumerate(side.kernels, start=1):
        yield _Fact(f"kernel {index}", str(kernel), _launch(kernel))
    yield _Fact(f"median time ({side.method})", format_seconds(side.seconds))


def _launch(kernel: Kernel) -> tuple[str, str, tuple[int, ...], tuple[int, ...]]:
    """What of a kernel has to be the same: all but its time."""
    return kernel.kind, kernel.name, kernel.grid, kernel.block


def _text(value: object) -> str:
    if isinstance(value, Descriptor):
        return (
            f"{'×'.join(map(str, value.sizes))}, strides {'/'.join(map(str, value.strides))}, "
            f"aligned to {value.alignment}, {value.data_type}"
        )
    if isinstance(value, Mapping):
        return ", ".join(f"{knob}={one}" for knob, one in value.items()) or "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "not known" if value is None else str(value)


def _verdict_lines(one: PassExplanation) -> list[str]:
    lines = [f"≠ {text}" for text in one.differences] or ["= PyTorch and convtime run the same"]
    ratio = "–" if math.isnan(one.ratio.value) else str(one.ratio)
    lines.append(f"time convtime/PyTorch: {ratio}, {one.verdict}")
    if not one.pytorch_repeats:
        lines.append("PyTorch's own results differ in their bits from call to call")
    return lines

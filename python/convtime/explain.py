"""What PyTorch runs for a convolution and why, next to what convtime runs for it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import html
import math
import re
import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from tabulate import tabulate
from torch.nn import functional as F
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

import convtime
from convtime import nn, ops
from convtime._json import with_tuples
from convtime.comparison import Comparison, Ratio, compare
from convtime.conv_problem import (
    CUDNN_BACKENDS,
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

_REPEATS = 100
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
        x: The descriptor of the input of cuDNN's convolution; None where it is not known. So are w,
            and y, the output's. A transposed convolution's own output is x (see
            ConvProblem.cudnn_problem).
        compute_type: cuDNN's name in lower case, e.g. "float"; None where it is not known.
        padding: One number a spatial dimension; so are stride and dilation. None where it is not
            known.
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

    @property
    def launch(self) -> tuple[str, str, tuple[int, ...], tuple[int, ...]]:
        """What of it has to be the same in PyTorch and convtime: all but its time."""
        return self.kind, self.name, self.grid, self.block

    @property
    def label(self) -> str:
        """Name, grid and block in one text."""
        if self.kind != "kernel":
            return self.kind
        grid, block = ("×".join(map(str, sizes)) for sizes in (self.grid, self.block))
        return f"{self.name}, grid {grid}, block {block}"

    def __str__(self) -> str:
        return f"{self.label}, {format_seconds(self.seconds)}"


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
        name: "fprop", "dgrad" (the input's gradient) or "wgrad" (the weight's). A transposed
            convolution's fprop is cuDNN's dgrad, and its dgrad cuDNN's fprop, as the tags say.
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
        told = [f"{problem.op} of {shapes}", problem.dtype, self.device]
        usual = ConvProblem(problem.dtype, problem.x, problem.w)
        for name in ("stride", "padding", "dilation", "output_padding"):
            numbers = getattr(problem, name)
            if numbers != getattr(usual, name):
                told.append(f"{name.replace('_', ' ')} {'×'.join(map(str, numbers))}")
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
    """Says what PyTorch runs for a convolution, and what convtime runs for it.

    Which plan PyTorch takes from cuDNN is found out in a child process (see
    convtime.plan_oracle), which takes some seconds to start.

    Args:
        fn: One of conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d and conv_transpose3d
            of torch.nn.functional or convtime.ops; or a module of torch.nn or convtime.nn: Conv1d,
            Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d. Parametrized, normed
            and pruned ones are among them; subclasses, and layers whose forward is replaced or has
            pre-hooks of other kinds, are not, since they may compute something else.
        args: Its positional arguments: the input, of shape (N, C, *spatial) or (C, *spatial), and
            for a function the weight and so on. float16, bfloat16, float32 or float64, on a CPU or
            a GPU.
        backward: Whether the gradients' passes are explained too: dgrad and wgrad. Unless given,
            those that input and weight ask for by requires_grad.
        budget: Seconds for timing each pass.
        kwargs: Its keyword arguments, convtime's ``policy`` among them.

    Raises:
        TypeError: for something that is no convolution, or may be more than one.
        ValueError: for a device or dtype that is not supported, or a backward that is no bool. What
            PyTorch says of arguments that do not fit passes through.
    """
    if backward is not None and not isinstance(backward, bool):
        raise ValueError(f"backward must be True, False or None, got {backward!r}")
    op = _op_of(fn)
    fn(*args, **kwargs)  # PyTorch's own errors come first
    call = _bind(op, fn, args, kwargs)
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
    """The arguments of a convolution, and convtime's policy."""

    input: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None
    stride: ops.Numbers = 1
    padding: ops.Numbers | str = 0
    dilation: ops.Numbers = 1
    groups: int = 1
    policy: str | None = None
    transposed: bool = False
    output_padding: ops.Numbers = 0


def _conv(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: ops.Numbers = 1,
    padding: ops.Numbers | str = 0,
    dilation: ops.Numbers = 1,
    groups: int = 1,
    *,
    policy: str | None = None,
) -> _Call:
    return _Call(input, weight, bias, stride, padding, dilation, groups, policy)


def _conv_transpose(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: ops.Numbers = 1,
    padding: ops.Numbers = 0,
    output_padding: ops.Numbers = 0,
    groups: int = 1,
    dilation: ops.Numbers = 1,
    *,
    policy: str | None = None,
) -> _Call:
    return _Call(
        input, weight, bias, stride, padding, dilation, groups, policy,
        transposed=True, output_padding=output_padding,
    )  # fmt: skip


# What understands the arguments of each function, and the functions of that name.
_OPS = {f"conv{rank}d": _conv for rank in (1, 2, 3)} | {
    f"conv_transpose{rank}d": _conv_transpose for rank in (1, 2, 3)
}
_NAMESPACES = (F, torch, torch.ops.aten, ops, torch.ops.convtime)
_MODULES: dict[type[torch.nn.Module], str] = {
    torch.nn.Conv1d: "conv1d",
    torch.nn.Conv2d: "conv2d",
    torch.nn.Conv3d: "conv3d",
    torch.nn.ConvTranspose1d: "conv_transpose1d",
    torch.nn.ConvTranspose2d: "conv_transpose2d",
    torch.nn.ConvTranspose3d: "conv_transpose3d",
}
_TAKEN = (
    f"explain takes {', '.join(_OPS)} of torch.nn.functional or convtime.ops, or a module of "
    "torch.nn or convtime.nn that calls one of them"
)
# Forward pre-hooks that compute the weight, and leave the input alone.
_WEIGHT_HOOKS = (WeightNorm, SpectralNorm, BasePruningMethod)


def _op_of(fn: object) -> str:
    """The name of the function that fn is, or that the module calls."""
    for kind, op in _MODULES.items():
        if isinstance(fn, kind):
            reason = _why_not_plain(fn)
            if reason:
                raise TypeError(
                    f"{_TAKEN}, and not this {type(fn).__name__}, which may compute something "
                    f"else: {reason}; explain torch.nn.functional.{op} with its tensors instead"
                )
            return op
    for op in _OPS:
        if any(fn is getattr(namespace, op, None) for namespace in _NAMESPACES):
            return op
    hint = ""
    if isinstance(fn, torch.nn.Module):
        inside = sum(isinstance(one, tuple(_MODULES)) for one in fn.modules())
        if inside:
            hint = f"; it has {inside} convolution(s) inside, which can be explained one by one"
    name = getattr(fn, "__name__", type(fn).__name__)
    raise TypeError(f"{_TAKEN}, and {name} is none of them{hint}")


def _why_not_plain(module: torch.nn.Module) -> str | None:
    why = nn.why_not_plain(module)
    if why:
        return why
    for hook in module._forward_pre_hooks.values():
        if not isinstance(hook, _WEIGHT_HOOKS):
            name = getattr(hook, "__qualname__", type(hook).__qualname__)
            return f"{name}, a forward pre-hook, may change its input"
    return None


def _bind(
    op: str, fn: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> _Call:
    if not isinstance(fn, torch.nn.Module):
        return _OPS[op](*args, **kwargs)
    module: Any = fn
    x, output_padding = _module_input(module, *args, **kwargs)
    padding = module.padding
    if module.padding_mode != "zeros":
        x = F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
        padding = 0
    return _Call(
        x,
        module.weight,
        module.bias,
        module.stride,
        padding,
        module.dilation,
        module.groups,
        getattr(module, "policy", None),  # of convtime's own
        module.transposed,
        output_padding,
    )


def _module_input(
    module: Any, input: torch.Tensor, output_size: Sequence[int] | None = None
) -> tuple[torch.Tensor, ops.Numbers]:
    """The input of a module's call, and the output_padding that output_size asks for."""
    if output_size is None:
        return input, module.output_padding
    output_padding: list[int] = module._output_padding(
        input,
        output_size,
        module.stride,
        module.padding,
        module.kernel_size,
        len(module.kernel_size),
        module.dilation,
    )
    return input, output_padding


def _prepare(call: _Call) -> tuple[ConvTensors, ConvProblem]:
    """The call as PyTorch's selection sees it: with a batch, cast, with padding as numbers."""
    if call.input.device.type not in ("cpu", "cuda"):
        raise ValueError(f"explain works on a CPU or a GPU, got a tensor on {call.input.device}")
    batched = call.input.dim() == call.weight.dim()
    tensors = [call.input if batched else call.input.unsqueeze(0), call.weight]
    if call.bias is not None:
        tensors.append(call.bias)
    x, w, *bias = (_autocast(one) for one in tensors)
    if x.dtype not in ops.DTYPES:
        raise ValueError(f"explain: the dtype must be one of {ops.DTYPES}, got {x.dtype}")
    rank = w.dim() - 2
    stride, dilation = _numbers(call.stride, rank), _numbers(call.dilation, rank)
    if isinstance(call.padding, str):
        padding, surplus = ops.resolve_padding(
            "explain", rank, w.shape, stride, call.padding, dilation
        )
        x = ops.pad_end(x, surplus)
    else:
        padding = _numbers(call.padding, rank)
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
        transposed=call.transposed,
        output_padding=_numbers(call.output_padding, rank),
    )
    return ConvTensors(x, w, *bias), problem


def _autocast(tensor: torch.Tensor) -> torch.Tensor:
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


def _numbers(given: ops.Numbers, rank: int) -> tuple[int, ...]:
    numbers = tuple(given) if isinstance(given, Sequence) else (given,)
    return tuple(map(int, numbers * rank if len(numbers) == 1 else numbers))


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
        function = getattr(ops, problem.op)
        return functools.partial(
            function, tensors.x, tensors.w, tensors.bias, *problem.arguments, policy=policy
        )
    wanted = backward_pass(pass_name)
    arguments = (
        tensors.grad_output, tensors.x, tensors.w, *problem.backward_arguments,
        [one == wanted for one in range(3)],
    )  # fmt: skip
    policy = policy if policy in ("heuristic", "benchmark") else None
    backward = torch.ops.convtime.convolution_backward
    return lambda: cast("torch.Tensor", backward(*arguments, policy=policy)[wanted])


def compare_bits(
    theirs: Callable[[], torch.Tensor], first: torch.Tensor, ours: torch.Tensor
) -> tuple[bool, bool]:
    """Whether convtime's result has the bits of PyTorch's first, and whether PyTorch repeats them.

    Where the two differ, PyTorch is called many times more: a kernel that adds up in no fixed
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


def same_launches(first: Iterable[Kernel], second: Iterable[Kernel]) -> bool:
    """Whether two calls launch the same, in whatever order."""
    # Groups run on several streams at once, and which kernel is first varies.
    one, other = (sorted(kernel.launch for kernel in kernels) for kernels in (first, second))
    return one == other


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
    if backend not in CUDNN_BACKENDS:
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
    if backend not in CUDNN_BACKENDS:
        return None, _NOT_CUDNN
    # A thread that has no built plan yet looks its choice up, and so makes it the last one used.
    in_fresh_thread(call, tensors.x.device)
    for choice in reversed(convtime.plan_cache()):
        if _is_choice_for(choice, problem, name):
            return plan_of_choice(choice), ""
    return None, "convtime.plan_cache() has no choice for this problem"


def _is_choice_for(choice: convtime.PlanChoice, problem: ConvProblem, name: str) -> bool:
    expected = problem.cudnn_problem()
    return (
        choice.pass_name == problem.cudnn_pass(name)
        and str(choice.dtype).removeprefix("torch.") == problem.dtype
        and all(
            tuple(getattr(choice, tensor).sizes) == getattr(expected, tensor)
            for tensor in ("x", "w", "y")
        )
        and all(
            tuple(getattr(choice, parameter)) == getattr(expected, parameter)
            for parameter in ("stride", "padding", "dilation")
        )
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
    if not same_launches(pytorch.kernels, convtime.kernels):
        yield (
            f"the kernels, {len(pytorch.kernels)} of PyTorch and {len(convtime.kernels)} of "
            "convtime, differ in count, name, grid or block"
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
    depthwise = problem.x.sizes[1] == problem.groups > 1 and not problem.transposed
    no_cudnn = "" if flags.enabled else "torch.backends.cudnn.enabled is off"
    if "Empty" in backend:
        return "a tensor without elements leaves nothing to compute"
    if backend.startswith("CudaDepthwise"):
        return f"each channel is its own group, and {no_cudnn or _why_not_depthwise(problem)}"
    if backend == "Cudnn" and depthwise:
        return f"each channel is its own group, and {_why_depthwise(problem, tensors)}"
    if backend in CUDNN_BACKENDS:
        return "the tensors are on a GPU and nothing rules cuDNN out"
    if on_gpu:
        return f"{no_cudnn or _why_not_cudnn(problem)}, so PyTorch's own kernels run"
    if backend.startswith("Mkldnn"):
        return "the tensors are on a CPU and oneDNN takes their dtype and sizes"
    return "the tensors are on a CPU, and PyTorch prefers this to oneDNN for their dtype and sizes"


def _why_not_cudnn(problem: ConvProblem) -> str:
    for padding, stride in zip(problem.output_padding, problem.stride, strict=True):
        if padding >= stride:
            return f"cuDNN is not used for an output_padding ({padding}) of the stride or more"
    return "cuDNN cannot take this problem"


def _why_not_depthwise(problem: ConvProblem) -> str:
    kernel = problem.flags.depthwise_kernel
    if kernel not in (None, "auto"):
        return f"torch.backends.cudnn.depthwise_kernel is {kernel!r}"
    beginning = "with contiguous tensors PyTorch uses cuDNN for such only "
    if problem.rank == 3:
        return f"{beginning}in one or two spatial dimensions"
    if problem.dtype != "float16":
        return f"{beginning}in float16, not {problem.dtype}"
    if any(step != 1 for step in problem.dilation):
        return f"{beginning}without dilation, not with {problem.dilation}"
    if len(set(problem.stride)) > 1 and problem.x.sizes[2] != 1:
        return f"{beginning}with equal strides, not {problem.stride}"
    if problem.x.sizes[1] < 32:
        return f"{beginning}from 32 channels on, not with {problem.x.sizes[1]}"
    return f"{beginning}for some combinations of kernel size, width, stride, channels and batch"


def _why_depthwise(problem: ConvProblem, tensors: ConvTensors) -> str:
    kernel = problem.flags.depthwise_kernel
    if kernel not in (None, "auto"):
        return f"torch.backends.cudnn.depthwise_kernel is {kernel!r}"
    # One spatial dimension becomes two, after its input was made contiguous.
    seen = (tensors.w.unsqueeze(2),) if problem.rank == 1 else (tensors.x, tensors.w)
    memory_format = torch.channels_last_3d if problem.rank == 3 else torch.channels_last
    if any(
        one.is_contiguous(memory_format=memory_format) and not one.is_contiguous() for one in seen
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
        yield _Fact(f"kernel {index}", str(kernel), kernel.launch)
    yield _Fact(f"median time ({side.method})", format_seconds(side.seconds))


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

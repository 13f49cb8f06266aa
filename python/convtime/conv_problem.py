"""One convolution as data: enough for another process to call PyTorch on the very same problem.

Imports nothing compiled but torch: the child process of convtime.plan_oracle loads it without
convtime's core.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch

from convtime._json import with_tuples

PASSES = FPROP, DGRAD, WGRAD = ("fprop", "dgrad", "wgrad")
# Of PyTorch's backends, by name, those that run cuDNN's plans.
CUDNN_BACKENDS = ("Cudnn", "CudnnTranspose")
# PyTorch's allocators give out addresses that are multiples of at least this many bytes, and cuDNN
# is told of alignments up to 32.
_BOUNDARY = 64
# torch.equal holds 0.0 and -0.0 to be equal; integers of the same size do not.
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

# Parameters of a convolution with a number for each spatial dimension, and what that is by default.
_USUAL = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}
_TRANSPOSED_PASSES = {FPROP: DGRAD, DGRAD: FPROP, WGRAD: WGRAD}

Result = TypeVar("Result")


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two floating-point tensors of one dtype are the same bits, NaNs and zeros included.

    Their shapes have to be the same too; their strides need not.
    """
    bits = _BITS[a.element_size()]
    return torch.equal(a.detach().view(bits), b.detach().view(bits))


@dataclasses.dataclass(frozen=True)
class TensorLayout:
    """How a tensor lies in memory, whatever its numbers.

    Attributes:
        sizes: Of each dimension.
        strides: Of each dimension, in elements.
        misalignment: Bytes from the multiple of 64 below its address to its address.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    misalignment: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorLayout:
        return cls(tuple(tensor.shape), tensor.stride(), tensor.data_ptr() % _BOUNDARY)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TensorLayout:
        """Reverses dataclasses.asdict, also after JSON has made lists of the tuples."""
        return cls(tuple(data["sizes"]), tuple(data["strides"]), data["misalignment"])

    @property
    def extent(self) -> int:
        """Elements from the first to the last in memory, gaps included."""
        if 0 in self.sizes:
            return 0
        steps = zip(self.sizes, self.strides, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in steps)

    def random(self, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        """A tensor in this layout on the generator's device, of normally distributed numbers."""
        start = self.misalignment // dtype.itemsize
        memory = torch.empty(start + self.extent, dtype=dtype, device=generator.device)
        return memory.normal_(generator=generator).as_strided(self.sizes, self.strides, start)


@dataclasses.dataclass(frozen=True)
class Flags:
    """torch's settings, all of the whole process, that decide which convolution kernels may run.

    Attributes:
        enabled: torch.backends.cudnn.enabled.
        benchmark: torch.backends.cudnn.benchmark.
        benchmark_limit: torch.backends.cudnn.benchmark_limit; None where torch has no cuDNN.
        deterministic: torch.backends.cudnn.deterministic.
        allow_tf32: whether torch.backends.cudnn.conv.fp32_precision is "tf32", itself or by what it
            inherits; the older torch.backends.cudnn.allow_tf32 sets it too.
        deterministic_algorithms: torch.are_deterministic_algorithms_enabled().
        depthwise_kernel: torch.backends.cudnn.depthwise_kernel; None where torch does not have it.
    """

    enabled: bool = True
    benchmark: bool = False
    benchmark_limit: int | None = 10
    deterministic: bool = False
    allow_tf32: bool = True
    deterministic_algorithms: bool = False
    depthwise_kernel: str | None = None

    @classmethod
    def current(cls) -> Flags:
        """Those that are set now."""
        cudnn: Any = torch.backends.cudnn
        return cls(
            enabled=cudnn.enabled,
            benchmark=cudnn.benchmark,
            benchmark_limit=cudnn.benchmark_limit,
            deterministic=cudnn.deterministic,
            # Not cudnn.allow_tf32, which raises where convolutions and RNNs differ.
            allow_tf32=cudnn.conv.fp32_precision == "tf32",
            deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
            depthwise_kernel=getattr(cudnn, "depthwise_kernel", None),
        )

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Sets them, and afterwards sets back what was set before.

        The precision of convolutions is left alone where the one that holds is the wanted one.
        Where another has to be set, an inherited one is afterwards convolutions' own: it has the
        same value, and follows torch.backends.fp32_precision no more. torch does not tell which it
        was.
        """
        before = Flags.current()
        conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
        precision = conv.fp32_precision
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        try:
            self._set(warn_only)
            yield
        finally:
            before._set(warn_only)
            if conv.fp32_precision != precision:  # "none" and "ieee" are one to _set
                conv.fp32_precision = precision

    def _set(self, warn_only: bool) -> None:
        cudnn: Any = torch.backends.cudnn
        cudnn.enabled = self.enabled
        cudnn.benchmark = self.benchmark
        cudnn.deterministic = self.deterministic
        if self.allow_tf32 != (cudnn.conv.fp32_precision == "tf32"):
            # What is read may be inherited, and what is written no longer is.
            cudnn.conv.fp32_precision = "tf32" if self.allow_tf32 else "ieee"
        if self.benchmark_limit is not None and torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
            cudnn.benchmark_limit = self.benchmark_limit
        if self.depthwise_kernel is not None:
            cudnn.depthwise_kernel = self.depthwise_kernel
        torch.use_deterministic_algorithms(self.deterministic_algorithms, warn_only=warn_only)


@dataclasses.dataclass(frozen=True)
class CudnnProblem:
    """A convolution y = conv(x, w) as cuDNN is told of it: sizes and parameters, no layouts."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ConvTensors:
    """What a convolution and its backward pass read; grad_output only where that is wanted."""

    x: torch.Tensor
    w: torch.Tensor
    bias: torch.Tensor | None = None
    grad_output: torch.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class ConvProblem:
    """A convolution of tensors in certain layouts, under certain flags.

    It has one to three spatial dimensions; a transposed one is torch's conv_transpose, the gradient
    of a convolution as an operation of its own. Its passes are named by what they give: "fprop" the
    output, "dgrad" the input's gradient, "wgrad" the weight's.

    Attributes:
        dtype: Of all tensors, e.g. "float16".
        x: Of the input, shape (N, C, *spatial).
        w: Of the weight, shape (K, C / groups, *kernel); transposed (C, K / groups, *kernel).
        grad_output: Of the output's gradient, shape (N, K, *spatial), for the backward passes;
            None: as PyTorch's output lies.
        bias: Whether there is one, of shape (K,).
        stride: One number a spatial dimension, the last one's last; 1 everywhere unless given.
        padding: Likewise; 0 everywhere unless given.
        dilation: Likewise; 1 everywhere unless given.
        groups: Divides C and K.
        transposed: Whether it is a transposed convolution.
        output_padding: Of a transposed one, likewise; 0 everywhere unless given.

    Raises:
        ValueError: For parameters that are not one number a spatial dimension.
    """

    dtype: str
    x: TensorLayout
    w: TensorLayout
    grad_output: TensorLayout | None = None
    bias: bool = False
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    flags: Flags = Flags()
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, usual in _USUAL.items():
            given = getattr(self, name) or (usual,) * self.rank
            if len(given) != self.rank:
                raise ValueError(
                    f"{name} must be {self.rank} numbers, one a spatial dimension, got {given}"
                )
            object.__setattr__(self, name, given)

    @property
    def rank(self) -> int:
        """The number of spatial dimensions."""
        return len(self.w.sizes) - 2

    @property
    def op(self) -> str:
        """The name of torch's function, e.g. "conv_transpose2d"."""
        return f"conv{'_transpose' if self.transposed else ''}{self.rank}d"

    @property
    def output_sizes(self) -> tuple[int, ...]:
        """(N, K, *spatial)."""
        k = self.w.sizes[1] * self.groups if self.transposed else self.w.sizes[0]
        return self.x.sizes[0], k, *map(self._output_size, range(self.rank))

    def _output_size(self, axis: int) -> int:
        size, stride, padding = self.x.sizes[2 + axis], self.stride[axis], self.padding[axis]
        span = self.dilation[axis] * (self.w.sizes[2 + axis] - 1) + 1
        if self.transposed:
            return (size - 1) * stride - 2 * padding + span + self.output_padding[axis]
        return (size + 2 * padding - span) // stride + 1

    @property
    def flops(self) -> int:
        """Floating-point operations of one pass: two a multiply-add, none for bias."""
        # Each element on the side that the kernel is laid at meets each of the kernel's elements.
        elements = math.prod(self.x.sizes if self.transposed else self.output_sizes)
        return 2 * elements * math.prod(self.w.sizes[1:])

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What follows bias in a call of the function that op names."""
        if self.transposed:
            return self.stride, self.padding, self.output_padding, self.groups, self.dilation
        return self.stride, self.padding, self.dilation, self.groups

    @property
    def backward_arguments(self) -> tuple[Any, ...]:
        """What follows the tensors in ATen's convolution_backward, up to the output's mask."""
        return (
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding,
            self.groups,
        )

    def cudnn_problem(self) -> CudnnProblem:
        """The convolution y = conv(x, w) that cuDNN is told of.

        Of a transposed one, PyTorch hands cuDNN the convolution that it is the gradient of: its
        output is that one's x. One spatial dimension becomes two, the first of size 1.
        """
        x, y = self.x.sizes, self.output_sizes
        if self.transposed:
            x, y = y, x

        def widened(sizes: tuple[int, ...], first: int) -> tuple[int, ...]:
            return sizes if self.rank > 1 else (*sizes[:-1], first, sizes[-1])

        return CudnnProblem(
            x=widened(x, 1),
            w=widened(self.w.sizes, 1),
            y=widened(y, 1),
            stride=widened(self.stride, 1),
            padding=widened(self.padding, 0),
            dilation=widened(self.dilation, 1),
        )

    def cudnn_pass(self, pass_name: str) -> str:
        """The pass of cudnn_problem that PyTorch runs for a pass."""
        return _TRANSPOSED_PASSES[pass_name] if self.transposed else pass_name

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConvProblem:
        """Reverses to_dict, also after JSON has made lists of the tuples."""
        fields = with_tuples(data)
        for name in ("x", "w", "grad_output"):
            if fields[name] is not None:
                fields[name] = TensorLayout.from_dict(fields[name])
        return cls(**fields | {"flags": Flags(**fields["flags"])})

    def tensors(
        self, device: torch.device | str, *, backward: bool = True, seed: int = 0
    ) -> ConvTensors:
        """Random tensors in these layouts.

        Args:
            device: Where they are made.
            backward: Whether grad_output is made; where its layout is not given, PyTorch's
                convolution is run under the flags to see how its output lies.
            seed: Of the numbers.
        """
        dtype: torch.dtype = getattr(torch, self.dtype)
        generator = torch.Generator(device).manual_seed(seed)
        x, w = self.x.random(dtype, generator), self.w.random(dtype, generator)
        bias = None
        if self.bias:
            bias = torch.empty(self.output_sizes[1], dtype=dtype, device=device)
            bias.normal_(generator=generator)
        tensors = ConvTensors(x, w, bias)
        if not backward:
            return tensors
        if self.grad_output is not None:
            grad_output = self.grad_output.random(dtype, generator)
        else:
            with self.flags.applied(), torch.no_grad():
                output = self.pytorch_call(FPROP, tensors)()
            grad_output = torch.empty_like(output).normal_(generator=generator)
        return dataclasses.replace(tensors, grad_output=grad_output)

    def pytorch_call(self, pass_name: str, tensors: ConvTensors) -> Callable[[], torch.Tensor]:
        """PyTorch's own call of a pass, as its autograd makes it, without arguments."""
        if pass_name == FPROP:
            function = getattr(torch, self.op)
            return functools.partial(function, tensors.x, tensors.w, tensors.bias, *self.arguments)
        wanted = backward_pass(pass_name)
        arguments = (
            tensors.grad_output, tensors.x, tensors.w, None, *self.backward_arguments,
            [one == wanted for one in range(3)],
        )  # fmt: skip
        backward = torch.ops.aten.convolution_backward
        return lambda: cast("torch.Tensor", backward(*arguments)[wanted])

    def backend(self, pass_name: str, tensors: ConvTensors) -> str:
        """What PyTorch chooses for a pass, by the name of its ConvBackend, e.g. "Cudnn"."""
        bias = tensors.bias if pass_name == FPROP else None
        return backend_name(tensors.x, tensors.w, bias, *self.backward_arguments)


def backend_name(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, *arguments: Any
) -> str:
    """What torch's own function chooses, by the name of its ConvBackend, e.g. "Cudnn".

    Args:
        x: The input.
        w: The weight.
        bias: The bias, or None.
        arguments: ConvProblem.backward_arguments.
    """
    name = str(torch._C._select_conv_backend(x, w, bias, *arguments).name)
    # torch's binding knows the names of all backends of CPUs and GPUs but this one.
    return "MkldnnTranspose" if name == "???" else name


def backward_pass(pass_name: str) -> int:
    """The place of a pass's result among those of convolution_backward."""
    return (DGRAD, WGRAD).index(pass_name)


def in_fresh_thread(function: Callable[[], Result], device: torch.device) -> Result:
    """Calls a function where no thread-local cache knows anything yet; gradients are not recorded.

    It runs on the calling thread's current stream. Whatever it raises passes through.
    """
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
    outcome: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with torch.no_grad(), torch.cuda.stream(stream):
                if stream is not None:
                    # Makes the CUDA context the thread's: without one, cuDNN's engines that go
                    # through the driver fail in their first call, and PyTorch takes another plan.
                    torch.cuda.synchronize(device)
                outcome.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="convtime fresh thread")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return outcome[0]

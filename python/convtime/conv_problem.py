"""One 2-D convolution as data: enough for another process to call PyTorch on the very same problem.

Imports nothing compiled but torch: the child process of convtime.plan_oracle loads it without
convtime's core.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch

from convtime._json import with_tuples

PASSES = FPROP, DGRAD, WGRAD = ("fprop", "dgrad", "wgrad")
# PyTorch's allocators give out addresses that are multiples of at least this many bytes, and cuDNN
# is told of alignments up to 32.
_BOUNDARY = 64
# torch.equal holds 0.0 and -0.0 to be equal; integers of the same size do not.
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

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
        """Sets them, and afterwards sets back what was set before."""
        before = Flags.current()
        conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
        precision = conv.fp32_precision
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        try:
            self._set(warn_only)
            yield
        finally:
            before._set(warn_only)
            conv.fp32_precision = precision

    def _set(self, warn_only: bool) -> None:
        cudnn: Any = torch.backends.cudnn
        cudnn.enabled = self.enabled
        cudnn.benchmark = self.benchmark
        cudnn.deterministic = self.deterministic
        cudnn.conv.fp32_precision = "tf32" if self.allow_tf32 else "ieee"
        if self.benchmark_limit is not None and torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
            cudnn.benchmark_limit = self.benchmark_limit
        if self.depthwise_kernel is not None:
            cudnn.depthwise_kernel = self.depthwise_kernel
        torch.use_deterministic_algorithms(self.deterministic_algorithms, warn_only=warn_only)


@dataclasses.dataclass(frozen=True)
class ConvTensors:
    """What a convolution and its backward pass read; grad_output only where that is wanted."""

    x: torch.Tensor
    w: torch.Tensor
    bias: torch.Tensor | None = None
    grad_output: torch.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class ConvProblem:
    """A 2-D convolution of tensors in certain layouts, under certain flags.

    Attributes:
        dtype: Of all tensors, e.g. "float16".
        x: Of the input, shape (N, C, H, W).
        w: Of the weight, shape (K, C / groups, R, S).
        grad_output: Of the output's gradient, shape (N, K, P, Q), for the backward passes; None:
            as PyTorch's output lies.
        bias: Whether there is one, of shape (K,).
        stride: (vertical, horizontal); so are padding and dilation.
        groups: Divides C and K.
    """

    dtype: str
    x: TensorLayout
    w: TensorLayout
    grad_output: TensorLayout | None = None
    bias: bool = False
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    flags: Flags = Flags()

    @property
    def output_sizes(self) -> tuple[int, int, int, int]:
        """(N, K, P, Q)."""
        rows, columns = (
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, padding, dilation in zip(
                self.x.sizes[2:],
                self.w.sizes[2:],
                self.stride,
                self.padding,
                self.dilation,
                strict=True,
            )
        )
        return self.x.sizes[0], self.w.sizes[0], rows, columns

    @property
    def flops(self) -> int:
        """Floating-point operations of one pass: two a multiply-add, none for bias."""
        return 2 * math.prod(self.output_sizes) * math.prod(self.w.sizes[1:])

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
            bias = torch.empty(self.w.sizes[0], dtype=dtype, device=device)
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
            return functools.partial(
                torch.conv2d,
                tensors.x,
                tensors.w,
                tensors.bias,
                self.stride,
                self.padding,
                self.dilation,
                self.groups,
            )
        wanted = backward_pass(pass_name)
        arguments = (
            tensors.grad_output, tensors.x, tensors.w, None, self.stride, self.padding,
            self.dilation, False, (0, 0), self.groups, [one == wanted for one in range(3)],
        )  # fmt: skip
        backward = torch.ops.aten.convolution_backward
        return lambda: cast("torch.Tensor", backward(*arguments)[wanted])

    def backend(self, pass_name: str, tensors: ConvTensors) -> str:
        """What PyTorch chooses for a pass, by the name of its ConvBackend, e.g. "Cudnn"."""
        bias = tensors.bias if pass_name == FPROP else None
        return backend_name(
            tensors.x, tensors.w, bias, self.stride, self.padding, self.dilation, self.groups
        )


def backend_name(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> str:
    """What torch's own function chooses, by the name of its ConvBackend, e.g. "Cudnn"."""
    backend = torch._C._select_conv_backend(
        x, w, bias, list(stride), list(padding), list(dilation), False, [0, 0], groups
    )
    return str(backend.name)


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

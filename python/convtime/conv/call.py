"""A convolution call as data: another process can repeat the identical PyTorch call from it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch

from convtime.conv.problem import ConvProblem

#: dtypes and memory formats by their user-facing names.
DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
LAYOUTS = ("nchw", "nhwc")
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
PASSES = FPROP, DGRAD, WGRAD = ("fprop", "dgrad", "wgrad")
# The names of the PyTorch backends that run cuDNN plans.
CUDNN_BACKENDS = ("Cudnn", "CudnnTranspose")
# PyTorch's allocators return addresses that are multiples of at least this many bytes, and PyTorch
# reports alignments of up to 32 to cuDNN.
_BOUNDARY = 64
# torch.equal treats 0.0 and -0.0 as equal; integers of the same size differ.
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_TRANSPOSED_PASSES = {FPROP: DGRAD, DGRAD: FPROP, WGRAD: WGRAD}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two floating-point tensors of one dtype are bitwise identical.

    NaNs and signed zeros are compared by their bits too. The shapes must
    match; the strides may differ.
    """
    bits = _BITS[a.element_size()]
    return torch.equal(a.detach().view(bits), b.detach().view(bits))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without its module, e.g. "float16"."""
    return str(dtype).removeprefix("torch.")


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether a tensor is in channels_last layout, and not also contiguous."""
    nhwc = memory_format("nhwc", tensor.dim())
    return tensor.is_contiguous(memory_format=nhwc) and not tensor.is_contiguous()


def memory_format(layout: str, dimensions: int) -> torch.memory_format:
    """Return the memory format of a layout, a member of LAYOUTS, for this number of dimensions.

    For three dimensions PyTorch has no channels_last, so both layouts are contiguous.
    """
    contiguous = torch.contiguous_format
    return _CHANNELS_LAST.get(dimensions, contiguous) if layout == "nhwc" else contiguous


@dataclasses.dataclass(frozen=True)
class Flags:
    """The torch settings, global to the process, that decide which convolution kernels may run.

    Attributes:
        enabled: torch.backends.cudnn.enabled.
        benchmark: torch.backends.cudnn.benchmark.
        benchmark_limit: torch.backends.cudnn.benchmark_limit; None if torch has no cuDNN.
        deterministic: torch.backends.cudnn.deterministic.
        allow_tf32: whether torch.backends.cudnn.conv.fp32_precision is "tf32", set directly or
            inherited; the older torch.backends.cudnn.allow_tf32 sets it too.
        deterministic_algorithms: torch.are_deterministic_algorithms_enabled().
        depthwise_kernel: torch.backends.cudnn.depthwise_kernel; None if torch does not have it.
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
        cudnn: Any = torch.backends.cudnn
        return cls(
            enabled=cudnn.enabled,
            benchmark=cudnn.benchmark,
            benchmark_limit=cudnn.benchmark_limit,
            deterministic=cudnn.deterministic,
            # cudnn.allow_tf32 raises if convolutions and RNNs differ.
            allow_tf32=cudnn.conv.fp32_precision == "tf32",
            deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
            depthwise_kernel=getattr(cudnn, "depthwise_kernel", None),
        )

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the settings, and restore the previous ones on exit.

        The precision of convolutions is set only if it differs. If it was inherited and had to be
        set, it is restored as an explicit setting: the value is the same, but it no longer follows
        torch.backends.fp32_precision. torch does not report which kind it was.
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
            if conv.fp32_precision != precision:  # _set treats "none" and "ieee" alike
                conv.fp32_precision = precision

    def _set(self, warn_only: bool) -> None:
        cudnn: Any = torch.backends.cudnn
        cudnn.enabled = self.enabled
        cudnn.benchmark = self.benchmark
        cudnn.deterministic = self.deterministic
        if self.allow_tf32 != (cudnn.conv.fp32_precision == "tf32"):
            # A value that is read may be inherited; writing makes it explicit.
            cudnn.conv.fp32_precision = "tf32" if self.allow_tf32 else "ieee"
        if self.benchmark_limit is not None and torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
            cudnn.benchmark_limit = self.benchmark_limit
        if self.depthwise_kernel is not None:
            cudnn.depthwise_kernel = self.depthwise_kernel
        torch.use_deterministic_algorithms(self.deterministic_algorithms, warn_only=warn_only)


@dataclasses.dataclass(frozen=True)
class TensorLayout:
    """The memory layout of a tensor, independent of its values.

    Attributes:
        sizes: Size of each dimension.
        strides: Stride of each dimension, in elements.
        misalignment: The tensor's address modulo 64 bytes.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    misalignment: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorLayout:
        return cls(tuple(tensor.shape), tensor.stride(), tensor.data_ptr() % _BOUNDARY)

    @property
    def extent(self) -> int:
        """Elements from the first to the last in memory, gaps included."""
        if 0 in self.sizes:
            return 0
        steps = zip(self.sizes, self.strides, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in steps)

    def random(self, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        """Return a tensor with this layout and normally distributed values.

        It is on the generator's device.
        """
        start = self.misalignment // dtype.itemsize
        memory = torch.empty(start + self.extent, dtype=dtype, device=generator.device)
        return memory.normal_(generator=generator).as_strided(self.sizes, self.strides, start)


@dataclasses.dataclass(frozen=True)
class ConvTensors:
    """The inputs of a convolution and of its backward pass; grad_output only if it is needed."""

    x: torch.Tensor
    w: torch.Tensor
    bias: torch.Tensor | None = None
    grad_output: torch.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class ConvCall:
    """A convolution of tensors with given layouts, under given flags.

    Its passes are named after their results: "fprop" the output, "dgrad" the gradient of the input,
    "wgrad" the gradient of the weight.

    Attributes:
        problem: The convolution; its padding must be numeric, with zeros.
        dtype: The dtype of all tensors, e.g. "float16".
        x: Layout of the input, shape (N, C, *spatial).
        w: Layout of the weight, shape (K, C / groups, *kernel); if transposed,
            (C, K / groups, *kernel).
        grad_output: Layout of the output's gradient, shape (N, K, *spatial), for the backward
            passes; None: the layout of PyTorch's output.
        flags: The settings of torch.

    Raises:
        ValueError: The tensors do not have the problem's shapes.
    """

    problem: ConvProblem
    dtype: str
    x: TensorLayout
    w: TensorLayout
    grad_output: TensorLayout | None = None
    flags: Flags = Flags()

    def __post_init__(self) -> None:
        problem = self.problem
        for name, layout, shape in (
            ("x", self.x, problem.input_shape),
            ("w", self.w, problem.weight_shape),
            ("grad_output", self.grad_output, problem.output_shape),
        ):
            if layout is not None and layout.sizes != shape:
                raise ValueError(
                    f"{name} must have the problem's shape {shape}, got {layout.sizes}"
                )

    @classmethod
    def of_layouts(
        cls,
        dtype: str,
        x: TensorLayout,
        w: TensorLayout,
        grad_output: TensorLayout | None = None,
        *,
        flags: Flags = Flags(),
        **parameters: Any,
    ) -> ConvCall:
        """Return the call on tensors with these layouts; their sizes define the problem.

        Args:
            dtype: See the attribute.
            x: See the attribute.
            w: See the attribute.
            grad_output: See the attribute.
            flags: See the attribute.
            parameters: See :meth:`ConvProblem.of_sizes`.

        Raises:
            InputError: The sizes do not define a convolution.
        """
        problem = ConvProblem.of_sizes(x.sizes, w.sizes, **parameters)
        return cls(problem, dtype, x, w, grad_output, flags)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments after bias in a call of the problem's function."""
        return tuple(getattr(self.problem, name) for name in self.problem.kind.numbers)

    @property
    def backward_arguments(self) -> tuple[Any, ...]:
        """The arguments of ATen's convolution_backward between the tensors and the output mask."""
        problem = self.problem
        return (
            problem.stride,
            problem.padding,
            problem.dilation,
            problem.transposed,
            problem.output_padding,
            problem.groups,
        )

    def cudnn_pass(self, pass_name: str) -> str:
        """Return the pass of the problem's cudnn_problem that PyTorch runs for a pass."""
        return _TRANSPOSED_PASSES[pass_name] if self.problem.transposed else pass_name

    def tensors(
        self, device: torch.device | str, *, backward: bool = True, seed: int = 0
    ) -> ConvTensors:
        """Return random tensors with these layouts.

        Args:
            device: The device of the tensors.
            backward: Whether to create grad_output. If its layout is not given, PyTorch's
                convolution runs under the flags to find the layout of its output.
            seed: Seed of the random values.
        """
        dtype: torch.dtype = getattr(torch, self.dtype)
        generator = torch.Generator(device).manual_seed(seed)
        x, w = self.x.random(dtype, generator), self.w.random(dtype, generator)
        bias = None
        if self.problem.bias:
            bias = torch.empty(self.problem.out_channels, dtype=dtype, device=device)
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
        """Return PyTorch's call of a pass as autograd issues it, without arguments."""
        if pass_name == FPROP:
            function = getattr(torch, self.problem.kind.function)
            return functools.partial(function, tensors.x, tensors.w, tensors.bias, *self.arguments)
        return gradient_call(
            pass_name,
            torch.ops.aten.convolution_backward,
            *(tensors.grad_output, tensors.x, tensors.w, None),
            *self.backward_arguments,
        )

    def backend(self, pass_name: str, tensors: ConvTensors) -> str:
        """Return the name of the ConvBackend that PyTorch selects for a pass, e.g. "Cudnn"."""
        bias = tensors.bias if pass_name == FPROP else None
        selected = torch._C._select_conv_backend(
            tensors.x, tensors.w, bias, *self.backward_arguments
        )
        # torch's binding names every CPU and GPU backend except this one.
        return "MkldnnTranspose" if selected.name == "???" else str(selected.name)


def backward_pass(pass_name: str) -> int:
    """Return the index of a pass's result in the results of convolution_backward."""
    return (DGRAD, WGRAD).index(pass_name)


def gradient_call(
    pass_name: str, backward: Callable[..., Any], *arguments: Any, **options: Any
) -> Callable[[], torch.Tensor]:
    """Return a call of convolution_backward, PyTorch's or convtime's, that computes one gradient.

    Args:
        pass_name: DGRAD or WGRAD.
        backward: The op.
        arguments: Its arguments before the output mask.
        options: Its keyword arguments.
    """
    wanted = backward_pass(pass_name)
    mask = [place == wanted for place in range(3)]
    return lambda: cast("torch.Tensor", backward(*arguments, mask, **options)[wanted])

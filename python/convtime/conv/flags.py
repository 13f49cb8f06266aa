"""torch's settings that decide which convolution kernels may run: read, and set for a while."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch


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

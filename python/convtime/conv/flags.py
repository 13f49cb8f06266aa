"""Read, and temporarily set, the torch settings that decide which convolution kernels may run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch


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
        """Return the current settings."""
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

"""The GPU behind a torch device, as NVML (the driver's management library) knows it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

# By their names in `nvidia-smi --query-gpu=clocks_event_reasons.…`.
_THROTTLE_REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}


class NvmlUnavailableError(RuntimeError):
    """NVML cannot be asked about a GPU; the text is one sentence that says why."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU within a :func:`session`.

    Attributes:
        nvml: the module ``pynvml``.
        handle: NVML's own.
        uuid: what nvidia-smi's ``-i`` takes, e.g. ``GPU-1b2c…``.
    """

    nvml: Any
    handle: Any
    uuid: str

    def ask(self, question: str, *arguments: object) -> Any:
        """The answer of ``nvmlDeviceGet<question>``, None where GPU, driver or user have none."""
        try:
            return getattr(self.nvml, f"nvmlDeviceGet{question}")(self.handle, *arguments)
        except (
            self.nvml.NVMLError_NotSupported,
            self.nvml.NVMLError_FunctionNotFound,
            self.nvml.NVMLError_NoPermission,
            self.nvml.NVMLError_Unknown,  # what sandboxes say to questions that they do not pass on
        ):
            return None

    def clock_hz(self, kind: int) -> float | None:
        """The present rate of a clock (``NVML_CLOCK_SM``, …)."""
        clock_mhz = self.ask("ClockInfo", kind)
        return None if clock_mhz is None else clock_mhz * 1e6

    def power(self) -> float | None:
        """Watts at this moment; where the driver has only that, their average over a second."""
        values = self.ask("FieldValues", [self.nvml.NVML_FI_DEV_POWER_INSTANT])
        if values is not None and values[0].nvmlReturn == self.nvml.NVML_SUCCESS:
            return float(values[0].value.uiVal) / 1e3
        milliwatts = self.ask("PowerUsage")
        return None if milliwatts is None else milliwatts / 1e3

    def temperature(self) -> float | None:
        """Of the GPU's core, in °C."""
        degrees = self.ask("Temperature", self.nvml.NVML_TEMPERATURE_GPU)
        return None if degrees is None else float(degrees)

    def throttle_reasons(self) -> tuple[str, ...] | None:
        """What keeps the clocks from being higher at this moment."""
        bits = self.ask("CurrentClocksEventReasons")
        if bits is None:
            return None
        singles = (1 << place for place in range(bits.bit_length()) if bits >> place & 1)
        return tuple(_THROTTLE_REASONS.get(bit, hex(bit)) for bit in singles)


@contextlib.contextmanager
def session(device: torch.device) -> Iterator[Gpu]:
    """Asks NVML about the GPU that a CUDA device is.

    Raises:
        NvmlUnavailableError: where nvidia-ml-py, NVML itself or the GPU in it is not to be had.
    """
    try:
        import pynvml  # here: only where there is a GPU
    except ImportError:
        raise NvmlUnavailableError(
            "nvidia-ml-py is not installed; run pip install nvidia-ml-py"
        ) from None
    with contextlib.ExitStack() as stack:
        try:
            pynvml.nvmlInit()
            stack.callback(pynvml.nvmlShutdown)
            # CUDA_VISIBLE_DEVICES renumbers CUDA's devices and not NVML's. The bus also tells which
            # GPU a MIG instance is part of.
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(_pci_bus_id(device))
            gpu = Gpu(pynvml, handle, pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError as error:
            raise NvmlUnavailableError(f"NVML cannot be asked about {device}: {error}") from error
        yield gpu


def _pci_bus_id(device: torch.device) -> str:
    properties: Any = torch.cuda.get_device_properties(device)  # of which the stubs know half
    return (
        f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:"
        f"{properties.pci_device_id:02x}.0"
    )

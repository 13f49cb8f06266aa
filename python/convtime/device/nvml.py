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
    """NVML cannot be queried about a GPU; the message is one sentence that says why."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU inside a :func:`session`.

    Attributes:
        nvml: the module ``pynvml``.
        handle: NVML's device handle.
        uuid: UUID as nvidia-smi's ``-i`` takes it, e.g. ``GPU-1b2c…``.
    """

    nvml: Any
    handle: Any
    uuid: str

    def ask(self, question: str, *arguments: object) -> Any:
        """Call ``nvmlDeviceGet<question>``; None if GPU, driver or permissions do not allow it."""
        try:
            return getattr(self.nvml, f"nvmlDeviceGet{question}")(self.handle, *arguments)
        except (
            self.nvml.NVMLError_NotSupported,
            self.nvml.NVMLError_FunctionNotFound,
            self.nvml.NVMLError_NoPermission,
            self.nvml.NVMLError_Unknown,  # the answer of sandboxes to queries that they block
        ):
            return None

    def clock_hz(self, kind: int) -> float | None:
        """Return the present rate of a clock (``NVML_CLOCK_SM``, …), in Hz."""
        clock_mhz = self.ask("ClockInfo", kind)
        return None if clock_mhz is None else clock_mhz * 1e6

    def power(self) -> float | None:
        """Return the present power in watts, or its one-second average on drivers without that."""
        values = self.ask("FieldValues", [self.nvml.NVML_FI_DEV_POWER_INSTANT])
        if values is not None and values[0].nvmlReturn == self.nvml.NVML_SUCCESS:
            return float(values[0].value.uiVal) / 1e3
        milliwatts = self.ask("PowerUsage")
        return None if milliwatts is None else milliwatts / 1e3

    def temperature(self) -> float | None:
        """Return the temperature of the GPU's core, in °C."""
        degrees = self.ask("Temperature", self.nvml.NVML_TEMPERATURE_GPU)
        return None if degrees is None else float(degrees)

    def throttle_reasons(self) -> tuple[str, ...] | None:
        """Return the reasons that limit the clocks at this moment."""
        bits = self.ask("CurrentClocksEventReasons")
        if bits is None:
            return None
        singles = (1 << shift for shift in range(bits.bit_length()) if bits >> shift & 1)
        return tuple(_THROTTLE_REASONS.get(bit, hex(bit)) for bit in singles)


@contextlib.contextmanager
def session(device: torch.device) -> Iterator[Gpu]:
    """Open an NVML session for the GPU behind a CUDA device.

    Raises:
        NvmlUnavailableError: nvidia-ml-py, NVML itself, or NVML's entry for the GPU is missing.
    """
    try:
        import pynvml  # imported here because it is needed only with a GPU
    except ImportError:
        raise NvmlUnavailableError(
            "nvidia-ml-py is not installed; run pip install nvidia-ml-py"
        ) from None
    with contextlib.ExitStack() as stack:
        try:
            pynvml.nvmlInit()
            stack.callback(pynvml.nvmlShutdown)
            # CUDA_VISIBLE_DEVICES renumbers CUDA's devices but not NVML's. The bus id also
            # identifies the GPU that a MIG instance belongs to.
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(_pci_bus_id(device))
            gpu = Gpu(pynvml, handle, pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError as error:
            raise NvmlUnavailableError(f"NVML cannot be asked about {device}: {error}") from error
        yield gpu


def _pci_bus_id(device: torch.device) -> str:
    properties: Any = torch.cuda.get_device_properties(device)  # the stubs lack half the fields
    return (
        f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:"
        f"{properties.pci_device_id:02x}.0"
    )

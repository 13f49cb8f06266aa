"""Survey all GPUs of this process and their links, without timing anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.device import nvml
from convtime.device.clock_trace import ClockReading
from convtime.device.clocks import read_clocks
from convtime.device.provenance import provenance
from convtime.health.examination import HARDWARE_REASONS, Finding, Judged, either
from convtime.view.shown import Shown

#: Share of the other GPUs' lowest highest clock below which a GPU is reported.
_SLOW_CLOCK = 0.98


@dataclasses.dataclass(frozen=True)
class SurveyedGpu:
    """A GPU and its links, as reported by NVML; None where it does not report a value.

    Attributes:
        device: torch device.
        name: model.
        uuid: UUID as nvidia-smi's ``-i`` takes it.
        state: clocks, power, temperature and throttle reasons.
        max_sm_clock_hz: highest SM clock.
        ecc: whether the memory corrects errors.
        uncorrected_errors: number of uncorrected memory errors since the driver was loaded.
        pcie_width: PCIe lanes in use.
        max_pcie_width: PCIe lanes that GPU and slot support.
        pcie_generation: PCIe generation in use; lower on an idle GPU, which saves power.
        max_pcie_generation: PCIe generation that GPU and slot support.
        nvlinks: for each NVLink, whether it is active; empty without NVLink.
    """

    device: str
    name: str
    uuid: str
    state: ClockReading
    max_sm_clock_hz: float | None
    ecc: bool | None
    uncorrected_errors: int | None
    pcie_width: int | None
    max_pcie_width: int | None
    pcie_generation: int | None
    max_pcie_generation: int | None
    nvlinks: tuple[bool, ...]


@dataclasses.dataclass(frozen=True, repr=False)
class Survey(Judged, Shown, show="convtime.health.show_survey"):
    """All GPUs of this process, and their links; see ``convtime doctor --all``.

    Attributes:
        gpus: the GPUs.
        provenance: hardware, software and source state of the first.
    """

    gpus: tuple[SurveyedGpu, ...]
    provenance: Mapping[str, Any]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(_find(self.gpus))


def survey() -> Survey:
    """Survey all GPUs of this process.

    Raises:
        InputError: there is no GPU, or NVML is unavailable.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    require(count, "--all examines GPUs, and PyTorch finds none; leave it out for the CPU")
    devices = [torch.device("cuda", index) for index in range(count)]
    try:
        gpus = tuple(map(_survey_gpu, devices))
    except nvml.NvmlUnavailableError as error:
        raise InputError(f"--all needs NVML: {error}") from None
    return Survey(gpus, provenance(devices[0]))


def _survey_gpu(device: torch.device) -> SurveyedGpu:
    with nvml.session(device) as gpu:
        ecc = gpu.ask("EccMode")
        highest_mhz = gpu.ask("MaxClockInfo", gpu.nvml.NVML_CLOCK_SM)
        return SurveyedGpu(
            device=str(device),
            name=str(gpu.ask("Name")),
            uuid=gpu.uuid,
            state=read_clocks(gpu, 0.0),
            max_sm_clock_hz=None if highest_mhz is None else 1e6 * highest_mhz,
            ecc=None if ecc is None else bool(ecc[0]),
            uncorrected_errors=gpu.ask(
                "TotalEccErrors",
                gpu.nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                gpu.nvml.NVML_VOLATILE_ECC,
            ),
            pcie_width=gpu.ask("CurrPcieLinkWidth"),
            max_pcie_width=gpu.ask("MaxPcieLinkWidth"),
            pcie_generation=gpu.ask("CurrPcieLinkGeneration"),
            max_pcie_generation=gpu.ask("MaxPcieLinkGeneration"),
            nvlinks=tuple(_nvlinks(gpu)),
        )


def _nvlinks(gpu: nvml.Gpu) -> Iterator[bool]:
    for link in range(gpu.nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = gpu.ask("NvLinkState", link)
        except gpu.nvml.NVMLError_InvalidArgument:  # beyond the GPU's last link
            return
        if active is None:
            return
        yield bool(active)


def _find(gpus: Sequence[SurveyedGpu]) -> Iterator[Finding]:
    for gpu in gpus:
        yield from _judge_hardware(gpu)
        yield from _judge_siblings(gpu, [each for each in gpus if each is not gpu])


def _judge_hardware(gpu: SurveyedGpu) -> Iterator[Finding]:
    if gpu.pcie_width is not None and gpu.max_pcie_width is not None:
        yield either(
            f"{gpu.device} PCIe",
            "failed" if gpu.pcie_width < gpu.max_pcie_width else "ok",
            f"{gpu.pcie_width} of {gpu.max_pcie_width} lanes are in use",
            "reseat the GPU, or check its riser and slot",
            f"all {gpu.pcie_width} lanes are in use",
        )
    if gpu.nvlinks:
        inactive = [str(link) for link, active in enumerate(gpu.nvlinks) if not active]
        yield either(
            f"{gpu.device} NVLink",
            "advice" if inactive else "ok",
            f"{len(inactive)} of {len(gpu.nvlinks)} links are inactive: {', '.join(inactive)}",
            "run nvidia-smi nvlink --status",
            f"all {len(gpu.nvlinks)} links are active",
        )
    if gpu.uncorrected_errors is not None:
        yield either(
            f"{gpu.device} ECC",
            "failed" if gpu.uncorrected_errors else "ok",
            f"{gpu.uncorrected_errors} uncorrectable memory errors",
            "reset or replace the GPU",
            "no uncorrectable memory errors",
        )
    hardware = [why for why in gpu.state.throttle_reasons or () if why in HARDWARE_REASONS]
    if hardware:
        yield Finding(
            f"{gpu.device} throttling",
            "failed",
            f"the hardware slows it down: {', '.join(hardware)}",
            "check its cooling and its power supply",
        )


def _judge_siblings(gpu: SurveyedGpu, others: Sequence[SurveyedGpu]) -> Iterator[Finding]:
    if not others:
        return
    check = f"{gpu.device} siblings"
    if all(other.name != gpu.name for other in others):
        message = f"it is a {gpu.name}, and the others are {', '.join({o.name for o in others})}"
        yield Finding(check, "advice", message, "expect other times on it")
    clocks = [other.max_sm_clock_hz for other in others if other.name == gpu.name]
    known = [clock for clock in clocks if clock is not None]
    highest = gpu.max_sm_clock_hz
    if highest is not None and known and highest < _SLOW_CLOCK * min(known):
        message = (
            f"its highest SM clock is {highest / 1e6:.0f} MHz, that of the others "
            f"{min(known) / 1e6:.0f} MHz"
        )
        yield Finding(check, "advice", message, "expect longer times on it")

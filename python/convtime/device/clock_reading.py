"""A GPU's clocks, power and temperature at one moment."""

from __future__ import annotations

import dataclasses

#: Share of the highest clock below which a sample is reported as throttled.
THROTTLED_BELOW = 0.95


@dataclasses.dataclass(frozen=True)
class ClockReading:
    """NVML's values at one moment; None for a value that this GPU or driver does not report.

    Attributes:
        seconds: time since the start of the readings.
        sm_clock_hz: SM clock.
        memory_clock_hz: memory clock.
        power: the GPU's power in watts: instantaneous, or averaged over the last second if the
            driver reports only that.
        temperature: temperature of the GPU's core, in °C.
        throttle_reasons: reasons that limited the clocks, by nvidia-smi's names, e.g.
            ``sw_power_cap``.
    """

    seconds: float
    sm_clock_hz: float | None
    memory_clock_hz: float | None
    power: float | None
    temperature: float | None
    throttle_reasons: tuple[str, ...] | None

    def __str__(self) -> str:
        parts = [
            f"{name}{scale * value:.0f} {unit}"
            for name, value, scale, unit in (
                ("SM clock ", self.sm_clock_hz, 1e-6, "MHz"),
                ("memory clock ", self.memory_clock_hz, 1e-6, "MHz"),
                ("", self.power, 1.0, "W"),
                ("", self.temperature, 1.0, "°C"),
            )
            if value is not None
        ]
        if self.throttle_reasons:
            parts.append(f"throttled by {', '.join(self.throttle_reasons)}")
        return f"after {self.seconds:.3g} s: {', '.join(parts) or 'nothing was told'}"

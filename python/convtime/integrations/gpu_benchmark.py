"""pytest-benchmark's fixture with device times, for the plugin in pytest_convtime."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from convtime.core.checks import check_whole, require
from convtime.core.codec import finite
from convtime.timing.forms import PAYLOAD
from convtime.timing.measurement import CONDITIONS, Measurement

if TYPE_CHECKING:
    from pytest_convtime import Timing

_DISABLED = (
    "gpu_benchmark called the function once and timed nothing: pytest-benchmark disables itself "
    "under xdist; run without -n, or use time_op"
)
# Options of pytest-benchmark's marker, and the corresponding timing options.
_LIMITS = {"max_time": "budget", "min_rounds": "min_samples"}


class GpuBenchmark:
    """pytest-benchmark's fixture, whose rounds are samples of :func:`convtime.time_op`.

    All other attributes (``group``, ``extra_info``, ``stats``, …) are those of that fixture.
    """

    def __init__(self, benchmark: Any, timing: Timing) -> None:
        self._benchmark = benchmark
        self._timing = timing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._benchmark, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self if name.startswith("_") else self._benchmark, name, value)

    def __call__(self, function_to_benchmark: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Time calls of a function, and return the result of one."""
        marker = self._timing.test.get_closest_marker("benchmark")
        given = marker.kwargs if marker else {}
        limits = {ours: given[theirs] for theirs, ours in _LIMITS.items() if theirs in given}
        options = limits | self._timing.options
        self._time("gpu_benchmark(...)", function_to_benchmark, args, kwargs, options)
        return function_to_benchmark(*args, **kwargs)

    def pedantic(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        teardown: Callable[..., object] | None = None,
        rounds: int = 1,
        warmup_rounds: int = 0,
        iterations: int = 1,
    ) -> Any:
        """Time exactly this number of calls, without ``setup`` and ``teardown``.

        A round is the mean of its iterations; each iteration is timed separately.
        """
        for name, value, least in (
            ("iterations", iterations, 1),
            ("rounds", rounds, 1),
            ("warmup_rounds", warmup_rounds, 0),
        ):
            check_whole(name, value, least)
        require(
            iterations == 1 or not setup,
            f"iterations must be 1 if there is a setup, got {iterations}",
        )
        call = _PedanticCall(target, tuple(args), dict(kwargs or {}), setup, teardown)
        count = rounds * iterations
        options = {"warmup": warmup_rounds, "stop": "count"}
        options |= {"min_samples": count, "max_samples": count}
        mode = "gpu_benchmark.pedantic(...)"
        if setup or teardown:
            self._time(mode, call, (), {}, options | {"before": call.prepare}, iterations)
        else:  # unwrapped, so that its tensors can be placed
            self._time(mode, target, call.args, call.kwargs, options, iterations)
        call.prepare()
        result = call()
        call.end()
        return result

    def _time(
        self,
        mode: str,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        iterations: int = 1,
    ) -> None:
        benchmark = self._benchmark
        if benchmark._mode:
            benchmark.has_error = True
            raise RuntimeError(
                f"gpu_benchmark must be used only once in a test, got a second use after "
                f"{benchmark._mode}"
            )
        benchmark._mode = mode
        if not (benchmark.enabled or self._timing.is_again):
            if self._timing.under_xdist:
                warnings.warn(pytest.PytestWarning(_DISABLED), stacklevel=3)
            return
        try:
            measured = self._timing.time_op(fn, *args, kwargs=kwargs, **options)
        except BaseException:
            benchmark.has_error = True
            raise
        if self._timing.is_again:  # that run is not one of pytest-benchmark's
            return
        stats, seconds = benchmark._make_stats(iterations), measured.seconds
        for first in range(0, len(seconds) - iterations + 1, iterations):
            stats.update(sum(seconds[first : first + iterations]))
        benchmark.extra_info.update(_extra_info(measured))


def _extra_info(measured: Measurement) -> dict[str, Any]:
    """Return the conditions of the measurement, for pytest-benchmark's files."""
    clock_hz = measured.median_sm_clock_hz
    conditions = {name: getattr(measured, name) for name in (*CONDITIONS, "device", "clocks")}
    reasons = (getattr(condition, "reason", "") for condition in conditions.values())
    return {
        **{name: str(condition) for name, condition in conditions.items()},
        "reasons": [reason for reason in reasons if reason],
        "sm_clock_mhz": None if clock_hz is None else clock_hz / 1e6,
        "gpu": measured.provenance.get("gpu"),
        "median_interval": finite(measured.median_interval),
        PAYLOAD: measured.to_dict(),
    }


class _PedanticCall:
    """A call with arguments from ``setup``; ``teardown`` is called with them afterward."""

    def __init__(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        setup: Callable[[], Any] | None,
        teardown: Callable[..., object] | None,
    ) -> None:
        self.args, self.kwargs = args, kwargs
        self._target, self._setup, self._teardown = target, setup, teardown
        self._given = bool(args or kwargs)
        self._called = False

    def prepare(self) -> None:
        """Run before each call."""
        self.end()
        made = self._setup() if self._setup else None
        if made:
            if self._given:
                raise TypeError("setup must not return arguments if args or kwargs are given")
            self.args, self.kwargs = made

    def __call__(self) -> Any:
        self._called = True
        return self._target(*self.args, **self.kwargs)

    def end(self) -> None:
        """Run after the last call, if there was one."""
        if self._called and self._teardown is not None:
            self._teardown(*self.args, **self.kwargs)
        self._called = False

"""A profiler and a timing in one process, which are told apart by their kernels."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity
from torch.profiler import profile as Profile

if TYPE_CHECKING:
    import convtime

MARKED = "erfinv"  # a part of the name of the kernel that profiles are to see
LAUNCHES = 100  # of it, in each profile
SECONDS = 0.4  # that a timing lasts
PATIENCE_SECONDS = 20.0  # for its first calls
BOTH = (ProfilerActivity.CPU, ProfilerActivity.CUDA)


class Scene:
    """What profiles and timings of one process did.

    Attributes:
        launched: marked kernels that were launched while a profile recorded.
        seen: those of them that profiles have.
        measurements: of the timings; none in a control, where the same calls are made untimed.
    """

    def __init__(self, device: torch.device, *, control: bool) -> None:
        self._control = control
        self._x = torch.rand(1 << 12, device=device)
        self.device = device
        self._calls = 0
        self._threads = 0
        self.launched = 0
        self.seen = 0
        self.measurements: list[convtime.Measurement] = []
        self.relu()
        self.launch(1)  # what is done once does not happen within a profile
        self.launched = 0
        torch.cuda.synchronize(device)

    def relu(self) -> torch.Tensor:
        return torch.relu(self._x)

    def launch(self, count: int = LAUNCHES) -> None:
        """Launches marked kernels, which the profile that is on has to see."""
        for _ in range(count):
            torch.erfinv(self._x)
        self.launched += count

    def time(self, fn: Callable[[], object] | None = None, **options: Any) -> None:
        """Times a callable, relu unless given, for SECONDS."""
        call = self._counted(fn or self.relu)
        if self._control:
            self._call_untimed(call)
            return
        from convtime import time_op

        chosen = self._options() | options
        self.measurements.append(time_op(call, **chosen))

    def compare(self) -> None:
        """Times two candidates against each other, likewise."""
        call = self._counted(self.relu)
        if self._control:
            self._call_untimed(call)
            return
        from convtime import compare

        candidates = {"one": call, "other": call}
        compared = compare(candidates, check=None, interference=False, **self._options())
        self.measurements += compared.measurements.values()

    def _options(self) -> dict[str, Any]:
        # Several processes at once: none of them is to wait for another's turn.
        return {"stop": "budget", "budget": SECONDS, "device": self.device, "exclusive": False}

    def _counted(self, call: Callable[[], object]) -> Callable[[], object]:
        def counted() -> object:
            self._calls += 1
            return call()

        return counted

    def _call_untimed(self, call: Callable[[], object]) -> None:
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            call()
            torch.cuda.synchronize(self.device)

    @contextlib.contextmanager
    def profile(self, *, marked: bool = True, **options: Any) -> Iterator[Profile]:
        """Profiles what is done within, and LAUNCHES marked kernels at its beginning."""
        with Profile(**({"activities": BOTH} | options)) as profiler:
            if marked:
                self.launch()
            yield profiler
        self.count(profiler)

    def count(self, profiler: Profile) -> None:
        """Counts the marked kernels that a profile, which has ended, has."""
        torch.cuda.synchronize(self.device)
        self.add(profiler.events() or ())  # type: ignore[no-untyped-call]

    def add(self, events: Iterable[Any]) -> None:
        """Counts those events that are of marked kernels."""
        self.seen += sum(
            event.device_type == DeviceType.CUDA and MARKED in event.name for event in events
        )

    @contextlib.contextmanager
    def meanwhile(self, work: Callable[[], None]) -> Iterator[None]:
        """Has another thread do it while what is within is done; both have ended afterwards."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)
            finally:
                self._threads -= 1

        thread = threading.Thread(target=run)
        self._threads += 1
        thread.start()
        try:
            yield
        finally:
            thread.join()
        if errors:
            raise errors[0]

    def go_on(self, calls: int = 100) -> None:
        """Waits until a timing on another thread has made that many more calls, or ended."""
        wanted = self._calls + calls
        end = time.perf_counter() + PATIENCE_SECONDS
        while self._calls < wanted and self._threads and time.perf_counter() < end:
            time.sleep(1e-4)

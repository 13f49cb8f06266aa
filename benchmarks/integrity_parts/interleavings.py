"""Profilers and timings of one process, in every order and on every thread."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule
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

    Of the marked kernels `launched` while a profile recorded, profiles have `seen` so many. There
    are no measurements in a control, where the same calls are made untimed.
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

    def record(self, **options: Any) -> None:
        """Profiles marked kernels and nothing else."""
        with self.profile(**options):
            pass

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


#: Starts kineto as its daemon does, on a thread of kineto's own and without asking anyone.
ON_DEMAND = """
#include <kineto/libkineto.h>
extern "C" void start(const char* config) {
  libkineto::api().initProfilerIfRegistered();
  libkineto::api().activityProfiler().scheduleTrace(config);
}
extern "C" int is_active() { return libkineto::api().activityProfiler().isActive(); }
"""


def profile_then_timing(scene: Scene) -> None:
    scene.record()
    scene.time()


def timing_then_profile(scene: Scene) -> None:
    scene.time()
    scene.record()


def timing_within_a_profile(scene: Scene) -> None:
    with scene.profile():
        scene.time()
        scene.launch()


def timing_on_another_thread_within_a_profile(scene: Scene) -> None:
    with scene.profile():
        with scene.meanwhile(scene.time):
            scene.go_on()
            scene.launch()
        scene.launch()


def profile_begins_before_and_ends_within_a_timing(scene: Scene) -> None:
    with contextlib.ExitStack() as timing, scene.profile():
        timing.enter_context(scene.meanwhile(scene.time))
        scene.go_on()
        scene.launch()


def profile_begins_within_and_ends_after_a_timing(scene: Scene) -> None:
    with contextlib.ExitStack() as profiling:
        with scene.meanwhile(scene.time):
            scene.go_on()
            profiling.enter_context(scene.profile())
        scene.launch()


def profile_on_another_thread_within_a_timing(scene: Scene) -> None:
    def profiling() -> None:
        scene.go_on()
        scene.record()

    with scene.meanwhile(profiling):
        scene.time()


def profile_within_the_timed_call_once(scene: Scene) -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        if calls == 30:
            scene.record()
        scene.relu()

    scene.time(call)


def profile_within_every_timed_call(scene: Scene) -> None:
    def call() -> None:
        with scene.profile(marked=False):
            scene.launch(5)

    scene.time(call, warmup=2, stop="count", max_samples=3, min_samples=1)


def profile_by_a_schedule_within_a_timing(scene: Scene) -> None:
    steps = schedule(wait=1, warmup=1, active=1, repeat=1)
    with scene.meanwhile(scene.time), profile(activities=BOTH, schedule=steps) as profiler:
        for step in range(3):
            scene.go_on(20)
            if step == 2:
                scene.launch()
            torch.cuda.synchronize(scene.device)
            profiler.step()
    scene.count(profiler)


def timing_begins_in_the_warm_up_of_a_profile(scene: Scene) -> None:
    steps = schedule(wait=0, warmup=1, active=1, repeat=1)
    with profile(activities=BOTH, schedule=steps) as profiler:
        with scene.meanwhile(scene.time):
            scene.go_on()
            profiler.step()
            scene.launch()
        profiler.step()
    scene.count(profiler)


def timing_within_a_profile_of_the_cpu(scene: Scene) -> None:
    with scene.profile(activities=[ProfilerActivity.CPU]), scene.meanwhile(scene.time):
        scene.launch()


def nvtx_ranges() -> contextlib.AbstractContextManager[object]:
    ranges: contextlib.AbstractContextManager[object]
    ranges = torch.autograd.profiler.emit_nvtx()  # type: ignore[no-untyped-call]
    return ranges


def nvtx_ranges_around_a_timing(scene: Scene) -> None:
    with nvtx_ranges():
        scene.time()
    scene.record()


def nvtx_ranges_on_another_thread(scene: Scene) -> None:
    with scene.meanwhile(scene.time), nvtx_ranges():
        scene.launch()
    scene.record()


def autograds_profiler_within_a_timing(scene: Scene) -> None:
    with scene.meanwhile(scene.time):
        scene.go_on()
        with torch.autograd.profiler.profile(use_device="cuda", use_kineto=True) as profiler:
            scene.launch()
        torch.cuda.synchronize(scene.device)
        scene.add(profiler.function_events or ())


def twenty_profiles_then_timing(scene: Scene) -> None:
    for _ in range(20):
        scene.record()
    scene.time()


def profiles_and_timings_by_turns(scene: Scene) -> None:
    for _ in range(10):
        scene.record()
        scene.time(stop="count", max_samples=50)


def many_profiles_within_a_timing(scene: Scene) -> None:
    with scene.meanwhile(scene.time):
        for _ in range(20):
            scene.record()


def within(work: Callable[[Scene], None] = Scene.time, **options: Any) -> Callable[[Scene], None]:
    """A profile of these options within work on another thread."""

    def interleave(scene: Scene) -> None:
        with scene.meanwhile(lambda: work(scene)):
            scene.go_on()
            scene.record(**options)

    return interleave


def two_timings_and_a_profile(scene: Scene) -> None:
    with scene.meanwhile(scene.time), scene.meanwhile(scene.time):
        scene.go_on()
        with scene.profile():
            scene.go_on(10)


def time_a_backward_pass(scene: Scene) -> None:
    x = torch.rand(1 << 12, device=scene.device, requires_grad=True)
    scene.time(lambda: torch.autograd.backward(torch.relu(x).sum()))


def profile_within_a_timing_by_events(scene: Scene) -> None:
    with scene.meanwhile(lambda: scene.time(method="event")):
        scene.go_on()
        with scene.profile():
            time.sleep(SECONDS)  # until it is calibrated


def profile_on_demand_within_a_timing(scene: Scene) -> None:
    """Kineto's own: it offers no lock, and starts on a thread of its own."""
    kineto = load_on_demand()
    kineto.start(
        b"ACTIVITIES_ENABLED=true\nACTIVITIES_WARMUP_PERIOD_SECS=0\nACTIVITIES_DURATION_MSECS=200\n"
        b"ACTIVITIES_LOG_FILE=/dev/null\n"
    )
    begin = time.perf_counter()
    was_active = False
    while time.perf_counter() < begin + 20 and (kineto.is_active() or not was_active):
        scene.time()
        was_active = was_active or bool(kineto.is_active())
    if not was_active:
        raise RuntimeError("kineto did not start on demand")
    scene.time()


def load_on_demand() -> ctypes.CDLL:
    torch_folder = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "on_demand.cpp"), Path(folder, "on_demand.so")
        source.write_text(ON_DEMAND)
        compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-shared", "-fPIC"]
        folders = [f"-I{torch_folder / 'include'}", f"-L{torch_folder / 'lib'}"]
        files = [str(source), "-o", str(library), "-ltorch_cpu", "-lc10"]
        subprocess.run([*compiler, *folders, *files], check=True)
        return ctypes.CDLL(str(library))


def _named(*makes: Callable[[Scene], None]) -> dict[str, Callable[[Scene], None]]:
    return {make.__name__.replace("_", " "): make for make in makes}


INTERLEAVINGS: dict[str, Callable[[Scene], None]] = {
    **_named(
        profile_then_timing,
        timing_then_profile,
        timing_within_a_profile,
        timing_on_another_thread_within_a_profile,
    ),
    "profile within a timing on another thread": within(),
    **_named(
        profile_begins_before_and_ends_within_a_timing,
        profile_begins_within_and_ends_after_a_timing,
        profile_on_another_thread_within_a_timing,
        profile_within_the_timed_call_once,
        profile_within_every_timed_call,
        profile_by_a_schedule_within_a_timing,
        timing_begins_in_the_warm_up_of_a_profile,
    ),
    "profile of the cpu within a timing": within(activities=[ProfilerActivity.CPU]),
    **_named(timing_within_a_profile_of_the_cpu),
    "profile of the gpu alone within a timing": within(activities=[ProfilerActivity.CUDA]),
    **_named(
        nvtx_ranges_around_a_timing,
        nvtx_ranges_on_another_thread,
        autograds_profiler_within_a_timing,
        twenty_profiles_then_timing,
        profiles_and_timings_by_turns,
        many_profiles_within_a_timing,
        two_timings_and_a_profile,
    ),
    "profile with stacks and shapes within a timing": within(
        record_shapes=True, with_stack=True, profile_memory=True
    ),
    "profile within a timing of a backward pass": within(time_a_backward_pass),
    "profile within a comparison": within(Scene.compare),
    **_named(profile_within_a_timing_by_events),
    "profile within a timing under load": within(lambda scene: scene.time(regime="sustained")),
    **_named(profile_on_demand_within_a_timing),
}

"""Profilers and timings of one process, in every order and on every thread."""

import contextlib
import ctypes
import functools
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from common.running import PLAIN
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule
from torch.profiler import profile as Profile

MARKED = "erfinv"  # a part of the name of the kernel that profiles are to see
LAUNCHES = 100  # of it, in each profile
SECONDS = 0.4  # that a timing lasts
PATIENCE_SECONDS = 20.0  # for its first calls
BOTH = (ProfilerActivity.CPU, ProfilerActivity.CUDA)
_nvtx_ranges: Callable[..., Any] = torch.autograd.profiler.emit_nvtx


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
        self.measurements: list[Any] = []
        self.relu()
        self.launch(1)  # what is done once does not happen within a profile
        self.launched = 0
        torch.cuda.synchronize(device)

    def relu(self) -> torch.Tensor:
        return torch.relu(self._x)

    def launch(self, count: int = LAUNCHES) -> None:
        for _ in range(count):
            torch.erfinv(self._x)
        self.launched += count

    def time(
        self, fn: Callable[[], object] | None = None, *, compares: bool = False, **options: Any
    ) -> None:
        def call() -> object:
            self._calls += 1
            return (fn or self.relu)()

        if self._control:
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                call()
                torch.cuda.synchronize(self.device)
            return
        from convtime import compare, time_op

        # Several processes at once: none of them is to wait for another's turn.
        usual: dict[str, Any] = {"stop": "budget", "budget": SECONDS, "exclusive": False}
        options = {**usual, "device": self.device, **options}
        if compares:
            compared = compare({"one": call, "other": call}, **PLAIN, **options)
            self.measurements += compared.measurements.values()
        else:
            self.measurements.append(time_op(call, **options))

    @contextlib.contextmanager
    def profile(self, *, marked: bool = True, **options: Any) -> Iterator[Profile]:
        """Profiles what is done within, and LAUNCHES marked kernels at its beginning."""
        with Profile(**({"activities": BOTH} | options)) as profiler:
            if marked:
                self.launch()
            yield profiler
        self.count(profiler)

    def record(self, **options: Any) -> None:
        with self.profile(**options):
            pass

    def count(self, profiler: Profile) -> None:
        torch.cuda.synchronize(self.device)
        self.add(profiler.events() or ())  # type: ignore[no-untyped-call]

    def add(self, events: Iterable[Any]) -> None:
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

    def timing(self) -> contextlib.AbstractContextManager[None]:
        return self.meanwhile(self.time)

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
    with scene.timing(), profile(activities=BOTH, schedule=steps) as profiler:
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
        with scene.timing():
            scene.go_on()
            profiler.step()
            scene.launch()
        profiler.step()
    scene.count(profiler)


def autograds_profiler_within_a_timing(scene: Scene) -> None:
    with scene.timing():
        scene.go_on()
        with torch.autograd.profiler.profile(use_device="cuda", use_kineto=True) as profiler:
            scene.launch()
        torch.cuda.synchronize(scene.device)
        scene.add(profiler.function_events or ())


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


def time_a_backward_pass(scene: Scene) -> None:
    x = torch.rand(1 << 12, device=scene.device, requires_grad=True)
    scene.time(lambda: torch.autograd.backward(torch.relu(x).sum()))


def profile_after_some_calls(scene: Scene) -> None:
    scene.go_on()
    scene.record()


# What a word of an interleaving does; or what it begins, which "/" and the word end.
_STEPS: dict[str, Callable[[Scene], object]] = {
    "record": Scene.record,
    "record-cpu": lambda scene: scene.record(activities=[ProfilerActivity.CPU]),
    "record-gpu": lambda scene: scene.record(activities=[ProfilerActivity.CUDA]),
    "record-all": lambda scene: scene.record(
        record_shapes=True, with_stack=True, profile_memory=True
    ),
    "time": Scene.time,
    "time-50": lambda scene: scene.time(stop="count", max_samples=50),
    "launch": Scene.launch,
    "go-on": Scene.go_on,
    "calibrate": lambda _: time.sleep(SECONDS),
}
_CONTEXTS: dict[str, Callable[[Scene], contextlib.AbstractContextManager[object]]] = {
    "profile": Scene.profile,
    "profile-cpu": lambda scene: scene.profile(activities=[ProfilerActivity.CPU]),
    "nvtx": lambda _: _nvtx_ranges(),
    # On another thread.
    "profiling": lambda scene: scene.meanwhile(lambda: profile_after_some_calls(scene)),
    "timing": Scene.timing,
    "events": lambda scene: scene.meanwhile(lambda: scene.time(method="event")),
    "load": lambda scene: scene.meanwhile(lambda: scene.time(regime="sustained")),
    "backward": lambda scene: scene.meanwhile(lambda: time_a_backward_pass(scene)),
    "comparison": lambda scene: scene.meanwhile(lambda: scene.time(compares=True)),
}


def interleave(scene: Scene, steps: str) -> None:
    begun: list[tuple[str, contextlib.ExitStack]] = []
    with contextlib.ExitStack() as whole:
        for step in steps.split():
            if step in _STEPS:
                _STEPS[step](scene)
            elif step in _CONTEXTS:
                stack = whole.enter_context(contextlib.ExitStack())
                stack.enter_context(_CONTEXTS[step](scene))
                begun.insert(0, (step, stack))
            else:
                ended = next(each for each in begun if f"/{each[0]}" == step)
                begun.remove(ended)
                ended[1].close()


_STEPS_OF = {
    "profile then timing": "record time",
    "timing then profile": "time record",
    "timing within a profile": "profile time launch /profile",
    "timing on another thread within a profile": (
        "profile timing go-on launch /timing launch /profile"
    ),
    "profile within a timing on another thread": "timing go-on record /timing",
    "profile begins before and ends within a timing": (
        "profile timing go-on launch /profile /timing"
    ),
    "profile begins within and ends after a timing": (
        "timing go-on profile /timing launch /profile"
    ),
    "profile of the cpu within a timing": "timing go-on record-cpu /timing",
    "timing within a profile of the cpu": "profile-cpu timing launch /timing /profile-cpu",
    "profile of the gpu alone within a timing": "timing go-on record-gpu /timing",
    "nvtx ranges around a timing": "nvtx time /nvtx record",
    "nvtx ranges on another thread": "timing nvtx launch /nvtx /timing record",
    "twenty profiles then timing": f"{20 * 'record '} time",
    "profiles and timings by turns": 10 * "record time-50 ",
    "many profiles within a timing": f"timing {20 * 'record '} /timing",
    "two timings and a profile": "timing timing go-on profile go-on /profile /timing /timing",
    "profile with stacks and shapes within a timing": "timing go-on record-all /timing",
    "profile within a timing of a backward pass": "backward go-on record /backward",
    "profile within a comparison": "comparison go-on record /comparison",
    "profile within a timing by events": "events go-on profile calibrate /profile /events",
    "profile within a timing under load": "load go-on record /load",
    "profile on another thread within a timing": "profiling time /profiling",
}
INTERLEAVINGS: dict[str, Callable[[Scene], None]] = {
    name: functools.partial(interleave, steps=steps) for name, steps in _STEPS_OF.items()
} | {
    made.__name__.replace("_", " "): made
    for made in (
        profile_within_the_timed_call_once,
        profile_within_every_timed_call,
        profile_by_a_schedule_within_a_timing,
        timing_begins_in_the_warm_up_of_a_profile,
        autograds_profiler_within_a_timing,
        profile_on_demand_within_a_timing,
    )
}

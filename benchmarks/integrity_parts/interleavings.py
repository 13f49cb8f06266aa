"""Profilers and timings of one process, in every order and on every thread."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from integrity_parts.scene import BOTH, SECONDS, Scene

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
    with scene.profile():
        pass
    scene.time()


def timing_then_profile(scene: Scene) -> None:
    scene.time()
    with scene.profile():
        pass


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


def profile_within_a_timing_on_another_thread(scene: Scene) -> None:
    with scene.meanwhile(scene.time):
        scene.go_on()
        with scene.profile():
            pass


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
        with scene.profile():
            pass

    with scene.meanwhile(profiling):
        scene.time()


def profile_within_the_timed_call_once(scene: Scene) -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        if calls == 30:
            with scene.profile():
                pass
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


def profile_of_the_cpu_within_a_timing(scene: Scene) -> None:
    with scene.meanwhile(scene.time):
        scene.go_on()
        with scene.profile(activities=[ProfilerActivity.CPU]):
            pass


def timing_within_a_profile_of_the_cpu(scene: Scene) -> None:
    with scene.profile(activities=[ProfilerActivity.CPU]), scene.meanwhile(scene.time):
        scene.launch()


def profile_of_the_gpu_alone_within_a_timing(scene: Scene) -> None:
    with scene.meanwhile(scene.time):
        scene.go_on()
        with scene.profile(activities=[ProfilerActivity.CUDA]):
            pass


def nvtx_ranges() -> contextlib.AbstractContextManager[object]:
    ranges: contextlib.AbstractContextManager[object]
    ranges = torch.autograd.profiler.emit_nvtx()  # type: ignore[no-untyped-call]
    return ranges


def nvtx_ranges_around_a_timing(scene: Scene) -> None:
    with nvtx_ranges():
        scene.time()
    with scene.profile():
        pass


def nvtx_ranges_on_another_thread(scene: Scene) -> None:
    with scene.meanwhile(scene.time), nvtx_ranges():
        scene.launch()
    with scene.profile():
        pass


def autograds_profiler_within_a_timing(scene: Scene) -> None:
    with scene.meanwhile(scene.time):
        scene.go_on()
        with torch.autograd.profiler.profile(use_device="cuda", use_kineto=True) as profiler:
            scene.launch()
        torch.cuda.synchronize(scene.device)
        scene.add(profiler.function_events or ())


def twenty_profiles_then_timing(scene: Scene) -> None:
    for _ in range(20):
        with scene.profile():
            pass
    scene.time()


def profiles_and_timings_by_turns(scene: Scene) -> None:
    for _ in range(10):
        with scene.profile():
            pass
        scene.time(stop="count", max_samples=50)


def many_profiles_within_a_timing(scene: Scene) -> None:
    with scene.meanwhile(scene.time):
        for _ in range(20):
            with scene.profile():
                pass


def two_timings_and_a_profile(scene: Scene) -> None:
    with scene.meanwhile(scene.time), scene.meanwhile(scene.time):
        scene.go_on()
        with scene.profile():
            scene.go_on(10)


def profile_with_stacks_and_shapes_within_a_timing(scene: Scene) -> None:
    with scene.meanwhile(scene.time):
        scene.go_on()
        with scene.profile(record_shapes=True, with_stack=True, profile_memory=True):
            pass


def profile_within_a_timing_of_a_backward_pass(scene: Scene) -> None:
    x = torch.rand(1 << 12, device=scene.device, requires_grad=True)

    def train() -> None:
        torch.autograd.backward(torch.relu(x).sum())

    with scene.meanwhile(lambda: scene.time(train)):
        scene.go_on()
        with scene.profile():
            pass


def profile_within_a_comparison(scene: Scene) -> None:
    with scene.meanwhile(scene.compare):
        scene.go_on()
        with scene.profile():
            pass


def profile_within_a_timing_by_events(scene: Scene) -> None:
    with scene.meanwhile(lambda: scene.time(method="event")):
        scene.go_on()
        with scene.profile():
            time.sleep(SECONDS)  # until it is calibrated


def profile_within_a_timing_under_load(scene: Scene) -> None:
    with scene.meanwhile(lambda: scene.time(regime="sustained")):
        scene.go_on()
        with scene.profile():
            pass


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


INTERLEAVINGS: dict[str, Callable[[Scene], None]] = {
    interleaving.__name__.replace("_", " "): interleaving
    for interleaving in (
        profile_then_timing,
        timing_then_profile,
        timing_within_a_profile,
        timing_on_another_thread_within_a_profile,
        profile_within_a_timing_on_another_thread,
        profile_begins_before_and_ends_within_a_timing,
        profile_begins_within_and_ends_after_a_timing,
        profile_on_another_thread_within_a_timing,
        profile_within_the_timed_call_once,
        profile_within_every_timed_call,
        profile_by_a_schedule_within_a_timing,
        timing_begins_in_the_warm_up_of_a_profile,
        profile_of_the_cpu_within_a_timing,
        timing_within_a_profile_of_the_cpu,
        profile_of_the_gpu_alone_within_a_timing,
        nvtx_ranges_around_a_timing,
        nvtx_ranges_on_another_thread,
        autograds_profiler_within_a_timing,
        twenty_profiles_then_timing,
        profiles_and_timings_by_turns,
        many_profiles_within_a_timing,
        two_timings_and_a_profile,
        profile_with_stacks_and_shapes_within_a_timing,
        profile_within_a_timing_of_a_backward_pass,
        profile_within_a_comparison,
        profile_within_a_timing_by_events,
        profile_within_a_timing_under_load,
        profile_on_demand_within_a_timing,
    )
}

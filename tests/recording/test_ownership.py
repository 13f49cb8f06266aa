"""Which region work belongs to: of threads, autograd's threads, and asynchronous tasks."""

import asyncio
import contextvars
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import convtime
from tests.recording.traces import AUTOGRAD, MAIN, STRANGER, FakeTrace, kernel_ns, owners


async def turns(count: int) -> None:
    """Lets the other tasks run so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


def behind_those_that_they_are_in(
    paths: Iterable[tuple[str, ...]], around: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    for path in paths:
        if path[:-1] == around:
            yield path
            yield from behind_those_that_they_are_in(paths, path)


step = st.one_of(st.sampled_from("abc"), st.none(), st.integers(1, 100))


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(step, max_size=30))
def test_each_entry_has_the_kernels_that_were_issued_in_it(
    trace: FakeTrace, steps: list[str | int | None]
) -> None:
    """Steps enter a region, leave one, or launch a kernel of so many ns."""
    trace.open = True
    trace.issued.clear()
    inside: list[Any] = []
    path: list[str] = []
    totals: dict[tuple[str, ...], list[int]] = {}
    expected: list[str | None] = []
    open_entries: list[tuple[tuple[str, ...], int]] = []
    with convtime.record() as recording:
        for each in steps:
            if isinstance(each, str):
                inside.append(convtime.region(each))
                inside[-1].__enter__()
                path.append(each)
                own = totals.setdefault(tuple(path), [])
                open_entries.append((tuple(path), len(own)))
                own.append(0)
            elif each is not None:
                trace.launch(each % 3, lasts=each)
                expected.append(path[-1] if path else None)
                for region, entry in open_entries:
                    totals[region][entry] += each
            elif inside:
                inside.pop().__exit__(None, None, None)
                path.pop()
                open_entries.pop()
        for region in reversed(inside):
            region.__exit__(None, None, None)
    assert owners(recording) == expected
    found = {region.path: kernel_ns(recording, *region.path) for region in recording.regions}
    assert found == totals
    assert [*found] == [*behind_those_that_they_are_in(totals)]
    launched = [each for each in steps if isinstance(each, int)]
    assert round(recording.kernel_seconds * 1e9) == sum(launched)
    assert len(recording.outside) == expected.count(None)
    assert not trace.open


def test_autograds_threads_work_for_the_region_that_is_open(trace: FakeTrace) -> None:
    with convtime.record() as recording:
        with convtime.region("backward"):
            trace.launch(thread=AUTOGRAD)
        trace.launch(thread=AUTOGRAD)  # by which a thread of another kind is its own
        with convtime.region("backward"):
            trace.launch(thread=AUTOGRAD)
            trace.launch(thread=STRANGER)
    assert owners(recording) == ["backward", None, "backward", "backward"]
    assert recording.ambiguous == 0
    assert recording.threads[AUTOGRAD] == "autograd"
    trace.open = True
    trace.issued.clear()
    with convtime.record() as recording:
        trace.launch(thread=STRANGER)  # which works for itself, since it does outside of regions
        with convtime.region("mine"):
            trace.launch(thread=STRANGER)
            trace.launch()
    assert owners(recording) == [None, None, "mine"]


def test_work_for_one_of_several_threads_is_nobodys(trace: FakeTrace) -> None:
    entered, done = threading.Event(), threading.Event()

    def work() -> None:
        with convtime.region("theirs"):
            trace.launch()
            entered.set()
            done.wait(60)

    thread = threading.Thread(target=work)
    with convtime.record() as recording:
        with convtime.region("mine"):
            thread.start()
            entered.wait(60)
            trace.launch()
            trace.launch(thread=AUTOGRAD)
            done.set()
        thread.join()
    assert owners(recording) == ["theirs", "mine", None]
    assert recording.ambiguous == 1
    assert "1 launch belongs to no region" in str(recording)


def test_a_region_within_a_backward_pass_lies_in_the_one_around_it(trace: FakeTrace) -> None:
    def backward() -> None:
        trace.numbers[threading.get_ident()] = AUTOGRAD
        with convtime.region("node"):
            trace.launch()

    with convtime.record() as recording, convtime.region("step"):
        thread = threading.Thread(target=backward)
        thread.start()
        thread.join()
    assert recording.region("step", "node").kernel_seconds == pytest.approx((1e-8,))
    assert kernel_ns(recording, "step") == [10]


def test_each_asynchronous_task_has_its_own_work(trace: FakeTrace) -> None:
    @convtime.region("inner")
    async def inner(kernel: int) -> None:
        await turns(1)
        trace.launch(kernel)

    async def task(name: str, kernel: int) -> None:
        trace.launch(kernel)  # before its region
        with convtime.region(name):
            for _ in range(3):
                trace.launch(kernel)
                trace.launch(kernel, thread=AUTOGRAD)  # which it waits for
                await turns(1)
            await inner(kernel)
        await turns(1)
        trace.launch(kernel)

    async def both() -> None:
        with convtime.region("around"):
            await asyncio.gather(task("a", 0), task("b", 1))
            trace.launch(2)
        trace.launch(2)

    run = asyncio.Handle._run
    with convtime.record() as recording:
        asyncio.run(both())
    assert asyncio.Handle._run is run
    found: dict[int, list[str | None]] = {0: [], 1: [], 2: []}
    for work, owner in zip(recording.work, owners(recording), strict=True):
        found[work.launch].append(owner)
    assert found[0] == ["around", *["a"] * 6, "inner", "around"]
    assert found[1] == ["around", *["b"] * 6, "inner", "around"]
    assert found[2] == ["around", None]
    assert kernel_ns(recording, "around", "a") == kernel_ns(recording, "around", "b") == [70]
    assert recording.ambiguous == 0


def test_a_task_that_outlives_a_region_is_not_in_it(trace: FakeTrace) -> None:
    async def task() -> None:
        trace.launch()
        await turns(3)
        trace.launch()
        with convtime.region("late"):
            trace.launch()

    async def main() -> None:
        with convtime.region("early"):
            child = asyncio.create_task(task())
            await turns(1)
        await child

    with convtime.record() as recording:
        asyncio.run(main())
    assert owners(recording) == ["early", None, "late"]
    assert [region.path for region in recording.regions] == [("early",), ("late",)]


def test_a_thread_works_for_the_task_that_waits_for_it(trace: FakeTrace) -> None:
    def work() -> None:
        trace.numbers[threading.get_ident()] = STRANGER
        trace.launch()
        with convtime.region("on a thread"):
            trace.launch()
        trace.launch()

    async def task(name: str) -> None:
        with convtime.region(name):
            await asyncio.to_thread(work)
            trace.launch()

    with convtime.record() as recording:
        asyncio.run(task("waits"))
    # A thread with regions is in none of the task's before it enters the first one.
    assert owners(recording) == [None, "on a thread", "waits", "waits"]
    assert [region.path for region in recording.regions] == [("waits",), ("waits", "on a thread")]
    threads = {entry.name: entry.thread for entry in recording.entries}
    assert threads == {"waits": MAIN, "on a thread": STRANGER}


def test_a_thread_without_regions_works_for_the_only_task_that_has_one(trace: FakeTrace) -> None:
    async def waiting(name: str, done: asyncio.Event) -> None:
        with convtime.region(name):
            await done.wait()

    async def main() -> None:
        done = asyncio.Event()
        tasks = [asyncio.create_task(waiting("a", done))]
        await turns(2)
        trace.launch(thread=STRANGER)
        tasks.append(asyncio.create_task(waiting("b", done)))
        await turns(2)
        trace.launch(thread=STRANGER)
        done.set()
        await asyncio.gather(*tasks)

    with convtime.record() as recording:
        asyncio.run(main())
    assert owners(recording) == ["a", None]
    assert recording.ambiguous == 1


def test_work_is_nobodys_where_tasks_switch_without_notice(trace: FakeTrace) -> None:
    """As under event loops that are not asyncio's: a context each, and nothing between them."""
    a, b = contextvars.copy_context(), contextvars.copy_context()
    in_a, in_b = convtime.region("a"), convtime.region("b")
    with convtime.record() as recording:
        a.run(in_a.__enter__)
        a.run(trace.launch)
        b.run(in_b.__enter__)
        a.run(trace.launch)
        b.run(trace.launch)
        a.run(in_a.__exit__)
        b.run(trace.launch)
        b.run(in_b.__exit__)
        trace.launch()
    assert owners(recording) == ["a", None, None, "b", None]
    assert recording.ambiguous == 2

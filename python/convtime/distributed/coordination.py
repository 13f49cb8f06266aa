"""Agreement between the ranks of a process group through its store.

Nothing here uses the group itself, whose communication is measured. A thread serves the store for
the thread that measures, which therefore can stop waiting when a rank fails or when the time is up.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import json
import math
import os
import queue
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.distributed.failure import Failure, Kind, is_of_communication, of_exception
from convtime.timing.ranks import rank_name


@dataclasses.dataclass(frozen=True)
class Process:
    """Identity of a process.

    Attributes:
        host: name of its machine.
        pid: process id.
        started: start time, in ticks since the machine booted: a process id can be reused.
        pids: identifies the machine and the namespace of process ids.
        clock: identifies the monotonic clock that its timestamps are read from.
    """

    host: str
    pid: int
    started: int
    pids: str
    clock: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def state(self) -> str:
        """Return whether it is ``alive``, ``stopped`` or ``ended``; ``unknown`` elsewhere."""
        if self.pids != this_process().pids:
            return "unknown"
        stat = _stat(self.pid)
        if stat is None or stat[0] in ("Z", "X") or stat[1] != self.started:
            return "ended"
        return "stopped" if stat[0] in ("T", "t") else "alive"


def this_process() -> Process:
    """Return the identity of this process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    _, started = _stat(os.getpid()) or ("", 0)
    return Process(
        host=socket.gethostname(),
        pid=os.getpid(),
        started=started,
        pids=f"{boot} {_namespace('pid')}",
        clock=f"{boot} {_namespace('time')}",
    )


def _namespace(kind: str) -> str:
    with contextlib.suppress(OSError):  # an older Linux, with one namespace for all
        return os.readlink(f"/proc/self/ns/{kind}")
    return ""


def _stat(pid: int) -> tuple[str, int] | None:
    """Return state and start time of a process; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before may contain anything
    return fields[0], int(fields[19])


#: How far a rank has come: exchanges, calls that ended, collectives that began.
Progress = tuple[int, int, int]

_PERIOD = 0.25  # seconds between looks at the other ranks, at most
_POLL_SECONDS = 0.0005
_SILENCE = 20.0  # seconds without a sign of life, after which a process elsewhere counts as ended
_JUDGED_AT = 0.9  # share of the timeout after which the rank that is behind is named
_GRACE = 0.5  # seconds for the measuring thread to end by itself after a failure
_LEAVE_SECONDS = 2.0  # for which the rank that may hold the store waits for the others to leave
_REPORT_SECONDS = 2.0  # for which a rank that does not take part waits for the store
_CUT_OFF = "its communication was cut off"
#: Numbers of this process's next measurements, by store and ranks.
_numbers: dict[tuple[bytes, str], itertools.count[int]] = collections.defaultdict(itertools.count)

#: Functions of the store's thread: they get the store, and a function that waits for keys.
Wait = Callable[[Sequence[str]], None]
_Job = Callable[[Store, Wait], Any]


class _StopError(Exception):
    """Ends a job after a failure."""


class Coordinator:
    """The ranks of a group, for the time of one measurement. Every rank has to enter it.

    Leaving it with an exception ends the measurement on all ranks. They raise the exception of
    :class:`Failure`; a rank whose code raised raises its own exception.

    Attributes:
        group: the process group.
        groups_used: the groups whose communication a failure aborts.
        rank: rank of this process in the group.
        size: number of ranks.
        names: names of the ranks in a sentence.
        processes: the ranks' processes, once known.
        progress: returns how far this rank's calls have come (ended calls, collectives).
        calling: whether calls of the measurement have begun.

    Args:
        group: the process group, which contains this rank.
        timeout: seconds after which the measurement ends on every rank.
    """

    def __init__(self, group: dist.ProcessGroup, timeout: float) -> None:
        self.group = group
        self.groups_used = [group]
        self.rank = group.rank()
        self.size = group.size()
        self.names = [*itertools.starmap(rank_name, enumerate(dist.get_process_group_ranks(group)))]
        self.processes: list[Process] = []
        self.progress: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.calling = False
        self._timeout = timeout
        self._period = min(_PERIOD, timeout / 20)
        self._began = time.monotonic()
        self._step = 0
        self._connect = _own_store(group)
        self._store: Any = None  # once it is connected
        self._jobs: queue.Queue[tuple[_Job, Future[Any]] | None] = queue.Queue()
        self._failure: Failure | None = None
        self._failed_at = math.inf
        self._checked_at = -math.inf
        self._last_beats: dict[int, tuple[bytes, float]] = {}  # and when they changed
        self._lock = threading.Lock()
        self._aborting = threading.Lock()
        self._aborted = ""
        # Signals only reach Python's main thread.
        self._interruptible = threading.current_thread() is threading.main_thread()
        self._measuring = True
        self._left = False
        self._interrupted = False
        self._thread = threading.Thread(target=self._serve, name="convtime ranks", daemon=True)
        self._timer = threading.Timer(timeout, self._time_is_up)
        self._timer.daemon = True

    @property
    def seconds_left(self) -> float:
        """Seconds until the timeout; negative after it."""
        return self._began + self._timeout - time.monotonic()

    def __enter__(self) -> Coordinator:
        self._thread.start()
        self._timer.start()
        try:
            self.processes = [
                Process(**each) for each in self.gather("enter", dataclasses.asdict(this_process()))
            ]
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def gather(self, label: str, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank; every rank calls this with the same label.

        Args:
            label: name of this step, in words.
            value: JSON-serializable value of this rank.
        """
        step, self._step = self._step, self._step + 1
        text = json.dumps([label, value])
        keys = [f"{step}/{rank}" for rank in range(self.size)]

        def exchange(store: Store, wait: Wait) -> list[Any]:
            store.set(keys[self.rank], text)
            wait(keys)
            values = [json.loads(text) for text in store.multi_get(keys)]
            if step > 0:  # all ranks have read it: they are at this step
                store.delete_key(f"{step - 1}/{self.rank}")
            return values

        values = self.run(exchange)
        for rank, (theirs, _) in enumerate(values):
            if theirs != label:
                self.fail("late", rank, f"is at the step {theirs!r} where others are at {label!r}")
        return [each for _, each in values]

    def run(self, job: _Job) -> Any:
        """Run a function of the store in the store's thread, and return its result.

        Raises:
            InputError: the ranks do not fit.
            RankError: a rank failed, or the time is up.
        """
        result: Future[Any] = Future()
        self._jobs.put((job, result))
        while not futures.wait([result], _PERIOD).done and self._failure is None:
            pass
        # A rank that fails directly after a step must not take its result from the others.
        if self._failure is not None and (not result.done() or result.exception()):
            self._abort_calls()
            raise self._error(self._failure)
        return result.result()

    def fail(self, kind: Kind, rank: int | None, reason: str) -> None:
        """End the measurement on every rank, for a reason that every rank finds or one tells."""
        self._publish(Failure(kind, rank, reason, self.calling))
        assert self._failure is not None
        self._abort_calls()
        raise self._error(self._failure)

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _at: object
    ) -> None:
        try:
            with self._lock:
                self._interruptible = False
            if self._interrupted:
                time.sleep(0.01)  # the signal arrives here instead of in the caller's code
        except KeyboardInterrupt:
            if not self._interrupted:  # it is the user's
                raise
        try:
            if error is None:
                self._leave()
            elif self._failure is None:
                self._find_cause(error)
            if self._failure is not None:
                if self.rank == 0:  # may hold the store, and end: the others look at it by then
                    time.sleep(max(0.0, min(4 * self._period, self.seconds_left)))
                self._abort_calls()
        finally:
            self._timer.cancel()
            with self._lock:
                self._measuring = False
            self._jobs.put(None)
        failure = self._failure
        if error is None or failure is None or not self._is_consequence(error, failure):
            return
        raise self._error(failure) from error

    def _is_consequence(self, error: BaseException, failure: Failure) -> bool:
        """Whether an exception of this rank is because of the failure, and not its cause."""
        if isinstance(error, KeyboardInterrupt):
            return self._interrupted  # or it is the user's, whose terminal interrupts all ranks
        own = failure.kind == "raised" and failure.rank == self.rank
        is_raised = isinstance(error, type(self._error(failure)))
        return not own and not is_raised and is_of_communication(error)

    def _leave(self) -> None:
        """Leave without a failure; the rank that may hold the store leaves last."""
        keys = [f"left/{rank}" for rank in range(self.size)]

        def leave(store: Store, _: Wait) -> None:
            self._left = True  # the store may end from here on
            store.set(keys[self.rank], "")
            end = time.monotonic() + _LEAVE_SECONDS
            while self.rank == 0 and time.monotonic() < end:
                if store.check(keys):  # nobody reads anything any more
                    for rank in range(self.size):
                        for key in (f"left/{rank}", f"beat/{rank}", f"{self._step - 1}/{rank}"):
                            store.delete_key(key)
                    return
                time.sleep(_POLL_SECONDS)

        self.run(leave)

    def _find_cause(self, error: BaseException) -> None:
        """Find the cause of an exception: this rank, or another whose failure it follows."""
        if is_of_communication(error):
            # Whoever caused it has ended, tells it, or is found to be behind.
            end = min(time.monotonic() + 8 * self._period, self._began + self._timeout)
            while self._failure is None and time.monotonic() < end:
                time.sleep(self._period / 10)
            if self._failure is not None:
                return
            if isinstance(error, TimeoutError) or self.seconds_left < 2 * self._period:
                self._publish(self._laggard())
                return
        kind: Kind = "input" if isinstance(error, InputError) and not self.calling else "raised"
        reason = of_exception(error)
        if kind == "input":
            reason = f"{self.names[self.rank]}: {error}"
        self._publish(Failure(kind, self.rank, reason, self.calling))

    def _publish(self, failure: Failure) -> None:
        """Tell all ranks; the first failure counts."""

        def publish(store: Store, _: Wait) -> None:
            self._set(Failure.from_json(store.compare_set("failed", "", failure.to_json())))

        if threading.current_thread() is self._thread:
            publish(self._store, self._await)
        else:
            done: Future[Any] = Future()
            self._jobs.put((publish, done))
            futures.wait([done], min(1.0, max(0.1, self.seconds_left)))  # it may not answer
        self._set(failure)

    def _set(self, failure: Failure) -> None:
        with self._lock:
            if self._failure is None:
                self._failed_at = time.monotonic()
                self._failure = failure

    def _error(self, failure: Failure) -> Exception:
        return failure.error(self._aborted or _CUT_OFF, self.names)

    def _serve(self) -> None:
        """Serve the store until the measurement ends, in a thread of its own."""
        try:
            # Tries for as long as the store's own timeout, which may be longer than this one's.
            self._store = self._connect()
        except Exception as error:  # of the store: there is nobody to raise it to
            self._find_lost_rank(error)
            return
        while True:
            with contextlib.suppress(queue.Empty):
                asked = self._jobs.get(timeout=self._period)
                if asked is None:
                    self._store = None  # or its socket would stay until garbage is collected
                    return
                self._serve_job(*asked)
            self._check_ranks_if_due()
            self._end_call()

    def _serve_job(self, job: _Job, result: Future[Any]) -> None:
        try:
            result.set_result(job(self._store, self._await))
        except _StopError as stopped:
            result.set_exception(stopped)
        except Exception as error:  # of the store
            self._find_lost_rank(error)
            result.set_exception(error)

    def _await(self, keys: Sequence[str]) -> None:
        """Wait for keys of the store, and look at the other ranks in the meantime."""
        spins = 0
        while not self._store.check(list(keys)):
            self._check_ranks_if_due()
            if self._failure is not None or not self._measuring:
                raise _StopError
            spins += 1
            if spins > 20:
                time.sleep(_POLL_SECONDS)

    def _check_ranks_if_due(self) -> None:
        if not self._left and time.monotonic() - self._checked_at >= self._period:
            try:
                self._check_ranks()
            except Exception as error:  # of the store: there is nobody to raise it to
                self._find_lost_rank(error)

    def _check_ranks(self) -> None:
        """Show a sign of life, and look for failures of others."""
        now = self._checked_at = time.monotonic()
        if self._failure is not None:
            return
        self._store.set(f"beat/{self.rank}", json.dumps([now, self._progress()]))
        if self._store.check(["failed"]):
            self._set(Failure.from_json(self._store.get("failed")))
            return
        for rank, process in enumerate(self.processes):
            if rank != self.rank and self._has_ended(rank, process, now):
                if not self._store.check([f"left/{rank}"]):
                    self._publish(self._ended(rank))
                return
        if now - self._began >= _JUDGED_AT * self._timeout:
            self._publish(self._laggard())

    def _has_ended(self, rank: int, process: Process, now: float) -> bool:
        state = process.state()
        if state != "unknown":
            return state == "ended"
        key = f"beat/{rank}"
        beat = self._store.get(key) if self._store.check([key]) else b""
        last, changed = self._last_beats.get(rank, (None, now))
        self._last_beats[rank] = (beat, changed if beat == last else now)
        return now - self._last_beats[rank][1] > min(_SILENCE, self._timeout / 2)

    def _ended(self, rank: int) -> Failure:
        reason = f"({self.processes[rank]}) ended without a word: it exited or was killed"
        return Failure("ended", rank, reason, self.calling)

    def _progress(self) -> Progress:
        return (self._step, *self.progress())

    def _laggard(self) -> Failure:
        """Return the failure of the rank that has come least far."""
        late = f"within timeout={self._timeout:g} s"
        progress: dict[int, Progress] = {self.rank: self._progress()}
        for rank in range(self.size):
            if rank == self.rank:
                continue
            process = self.processes[rank] if self.processes else None
            if process is not None and process.state() == "stopped":
                return Failure("late", rank, f"({process}) is stopped by a signal", self.calling)
            if not self._store.check([f"beat/{rank}"]):
                reason = (
                    f"did not take part {late}: every rank of the group has to make the same "
                    "call at the same time"
                )
                return Failure("absent", rank, reason, self.calling)
            progress[rank] = tuple(json.loads(self._store.get(f"beat/{rank}"))[1])
        rank = min(progress, key=lambda each: progress[each])
        where = behind(progress[rank], max(progress.values()))
        if not where:
            reason = f"and all others did not finish {late}; allow more time"
        else:
            reason = f"did not come as far as the others {late}: it hangs or is slow {where}"
        return Failure("late", rank, reason, self.calling)

    def _find_lost_rank(self, error: Exception) -> None:
        """Find out who ended: the store does not answer."""
        end = time.monotonic() + 4 * self._period  # a connection can end before its process
        while time.monotonic() < end and self._failure is None:
            for rank, process in enumerate(self.processes):
                if rank != self.rank and process.state() == "ended":
                    self._set(self._ended(rank))
                    return
            time.sleep(self._period / 10)
        self._set(self._without_store(str(error)))

    def _without_store(self, why: str) -> Failure:
        holder = _store_holder(self.group)
        if holder is not None:
            why += "; it holds the store unless the program made another one"
        reason = f"ended together with the store that the ranks agree through ({why})"
        return Failure("ended", holder, reason, self.calling)

    def _end_call(self) -> None:
        """End a call that does not return by itself after a failure."""
        if self._failure is None or time.monotonic() - self._failed_at < _GRACE:
            return
        if self._measuring:
            self._abort_calls()
        with self._lock:
            if not self._measuring:
                return
            default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            if self._interruptible and default and not self._interrupted:
                self._interrupted = True
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, signal.SIGINT)

    def _abort_calls(self) -> None:
        """Abort the calls' communication: on a GPU, it would wait for the failed rank forever."""
        with self._aborting:
            if self.calling and not self._aborted:
                self._aborted = abort(self.groups_used)

    def _time_is_up(self) -> None:
        """End the measurement even if the store does not answer; the timer's thread calls this."""
        stopped = (
            Failure("late", rank, f"({process}) is stopped by a signal", self.calling)
            for rank, process in enumerate(self.processes)
            if process.state() == "stopped"
        )
        late = f"within timeout={self._timeout:g} s"
        if self._store is None:
            self._set(self._without_store(f"no connection {late}"))
        else:
            unknown = Failure("late", None, f"did not answer {late}", self.calling)
            self._set(next(stopped, unknown))
        self._failed_at = min(self._failed_at, time.monotonic() - _GRACE)
        self._end_call()


def behind(least: Progress, most: Progress) -> str:
    """Return where a rank is that has not come as far as another; empty if it has."""
    (step, calls, collectives), (last_step, last_calls, last_collectives) = least, most
    if step < last_step:
        return f"after {calls} calls, before a step that others have done"
    if calls < last_calls:
        return f"in call {calls + 1}, which others have ended"
    if collectives < last_collectives:
        return f"in call {calls + 1}, before an operation of torch.distributed that others began"
    return ""


def abort(groups: Sequence[dist.ProcessGroup]) -> str:
    """Abort pending communication of groups whose backend can; return what happened to it."""
    # "nccl2" and others are names of later implementations.
    backends = (backend for group in groups for backend in _backends(group))
    aborting = [backend for backend in backends if backend.name().startswith("nccl")]
    try:
        for backend in aborting:
            backend.abort()
    except Exception as error:  # whatever it is, the group is unusable
        return f"its communication could not be aborted ({error})"
    return "its communication was aborted" if aborting else _CUT_OFF


def _backends(group: dist.ProcessGroup) -> list[Any]:
    """Return the backends of a group's devices, each once."""
    backends = [group._get_backend(device) for device in group._device_types]
    return list({id(backend): backend for backend in backends}.values())


def groups_here() -> list[dist.ProcessGroup]:
    """Return all process groups that contain this process."""
    return list(dist.distributed_c10d._world.pg_map)


@contextlib.contextmanager
def limiting_operations(groups: Sequence[dist.ProcessGroup]) -> Iterator[Callable[[float], None]]:
    """Yield a function that limits the time of Gloo's next operations, which nothing can abort."""
    backends = [
        (backend, backend.options._timeout)
        for group in groups
        for backend in _backends(group)
        if backend.name() == "gloo"
    ]

    def limit(seconds: float) -> None:
        for backend, usual in backends:
            backend._set_default_timeout(min(usual, timedelta(seconds=max(0.1, seconds))))

    try:
        yield limit
    finally:
        for backend, usual in backends:
            backend._set_default_timeout(usual)


def group_of(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return a group, or that of all ranks.

    Raises:
        InputError: torch.distributed is not initialized, or this rank is not in the group.
    """
    require(
        dist.is_available() and dist.is_initialized(),
        "group needs torch.distributed, which is not initialized; start the program with "
        "torchrun, and call torch.distributed.init_process_group first",
    )
    group = group or dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        require(
            group != dist.GroupMember.NON_GROUP_MEMBER,
            f"group must contain the rank that calls, got a group without rank {dist.get_rank()}; "
            "call this on the ranks of the group only",
        )
        raise InputError(f"group must be a torch.distributed.ProcessGroup, got {group!r}")
    return group


def report_error(group: dist.ProcessGroup | None, error: Exception) -> None:
    """Tell the other ranks of a group that this rank does not take part because of an error."""
    with contextlib.suppress(Exception):  # the caller raises the error that counts
        group = group_of(group)
        rank, connect = group.rank(), _own_store(group)
        failure = Failure("input", rank, f"{rank_name(rank, dist.get_rank())}: {error}")

        def report() -> None:
            with contextlib.suppress(Exception):
                connect().compare_set("failed", "", failure.to_json())

        reporting = threading.Thread(target=report, name="convtime ranks", daemon=True)
        reporting.start()
        reporting.join(_REPORT_SECONDS)  # the store may be gone


def _own_store(group: dist.ProcessGroup) -> Callable[[], Store]:
    """Return what connects to the store for the ranks' next measurement.

    Each rank counts the measurements that it takes part in. The counts begin again with another
    store, and leave out those that ended because a rank did not take part: it may have been this.
    """
    ranks = ",".join(map(str, dist.get_process_group_ranks(group)))

    def connect() -> Store:
        store = dist.distributed_c10d._get_default_store().clone()
        # A store can outlive the process group.
        numbers = _numbers[store.compare_set("convtime/store", "", uuid.uuid4().hex), ranks]
        while True:
            own = PrefixStore(f"convtime/{ranks}/{next(numbers)}", store)
            if not own.check(["failed"]) or Failure.from_json(own.get("failed")).kind != "absent":
                return own

    return connect


def _store_holder(group: dist.ProcessGroup) -> int | None:
    """Return the rank whose process holds torch's store; None if it may be another process.

    Rank 0 of all ranks does, unless torchrun's agent does, or the program made the store.
    """
    store: Any = dist.distributed_c10d._get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    ranks = dist.get_process_group_ranks(group)
    return ranks.index(0) if 0 in ranks else None

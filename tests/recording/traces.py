"""What tests of recordings share: a trace that needs no GPU."""

import threading

from convtime.recording.recording import Recording

MAIN, AUTOGRAD, STRANGER = 1, 2, 3


class FakeTrace:
    """A GPU on which a launch takes 10 ns, or as told, from 1000 ns after it was issued on."""

    def __init__(self) -> None:
        self.time = 0
        self.numbers = {threading.get_ident(): MAIN}
        self.issued: list[tuple[int, int, int, int]] = []
        self.faults = ""
        self.failure = ""
        self.open = True

    def now(self) -> int:
        assert self.open
        self.time += 1
        return self.time

    def thread(self) -> int:
        return self.numbers.setdefault(threading.get_ident(), 10 + len(self.numbers))

    def launch(self, kernel: int = 0, thread: int | None = None, lasts: int = 10) -> None:
        issuer = self.thread() if thread is None else thread
        self.issued.append((kernel, self.now(), issuer, lasts))

    def take(self, other_devices: object) -> tuple[object, object, str]:
        if self.failure:
            raise RuntimeError(self.failure)
        launches = [
            {
                "kind": "kernel" if number < 2 else "memcpy",
                "name": f"kernel_{number}" if number < 2 else "",
                "grid": (4, 1, 1),
                "block": (128, 1, 1),
                "registers_per_thread": 16,
                "shared_memory_bytes": 0,
                "bytes": 0 if number < 2 else 4096,
                "device": 0,
            }
            for number in range(3)
        ]
        activities = [
            (kernel, at + 1000, at + 1000 + lasts, at, thread, 7)
            for kernel, at, thread, lasts in self.issued
        ]
        return launches, activities, self.faults

    def close(self) -> None:
        self.open = False


def kernel_ns(recording: Recording, *path: str) -> list[int]:
    return [round(seconds * 1e9) for seconds in recording.region(*path).kernel_seconds]


def owners(recording: Recording) -> list[str | None]:
    return [
        None if work.entry is None else recording.entries[work.entry].name
        for work in recording.work
    ]

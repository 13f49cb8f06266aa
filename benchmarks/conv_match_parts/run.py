"""How conv_match and conv_match_nd run: in pieces, and again where a case left the GPU unusable."""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence

import results
import torch
from common.running import RUN_AGAIN, find_gpu, open_file

from conv_match_parts import rows
from conv_match_parts.child import Child
from conv_match_parts.host import HOST_CASES, measure_host, measure_memory
from conv_match_parts.passes import measure_call
from conv_match_parts.report import summarise
from conv_match_parts.rows import MODE_B, SEARCHES
from convtime.conv.call import ConvCall
from convtime.conv.plan_oracle import PlanOracle

_SAVE_SECONDS = 20.0

Step = Callable[[], results.Row | None]


def run(
    benchmark: str,
    description: str | None,
    all_calls: Callable[[], Mapping[str, ConvCall]],
    parts: Sequence[str],
) -> None:
    """Runs a benchmark of this kind from the command line.

    It has some of the parts "match", "mode-b", "benchmark", "host" and "memory". SystemExit with
    RUN_AGAIN, where a case left the GPU unusable for this process, and others are still to be run.
    """
    parser = results.argument_parser(description, resumable=True)
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    device = find_gpu(options.device)
    file = open_file(benchmark, summarise, options, device)

    with contextlib.ExitStack() as stack:
        oracle = stack.enter_context(PlanOracle(device))
        children = {
            what: stack.enter_context(Child(what, device))
            for what in (MODE_B, SEARCHES)
            if what in parts
        }
        saver = stack.enter_context(_Saver(file))
        calls = all_calls()
        # Shards are of all parts, so that a case belongs to one shard whichever parts are run.
        steps = _steps(calls, parts, oracle, children, device, deadline)
        chosen = _steps(calls, options.parts, oracle, children, device, deadline)
        pending = {key: step for key, step in file.pending(steps).items() if key in chosen}
        left, lost = len(pending), False
        for key, step in pending.items():
            if time.monotonic() > deadline:
                break
            row = step()
            if row is None:
                break
            saver.add(key, row)
            left -= 1
            for line in rows.mismatches([{"key": key, **row}]):
                print(line, flush=True)
            lost = _lost_gpu(key, row)
            if lost:
                print(f"{key} left the GPU unusable for this process; run again to go on")
                break
            torch.cuda.empty_cache()  # blocks cut for one problem's sizes rarely fit the next's
    summary = results.make_summary(file.rows, summarise, results.load_goals()[benchmark])
    print(f"{file.path}: {len(file.rows)} rows, {left} still to be run")
    print(results.describe(summary))
    if lost and left:
        raise SystemExit(RUN_AGAIN)


def _lost_gpu(key: str, row: results.Row) -> bool:
    """Whether this process lost it, and not one of its children, which are started again."""
    if key.startswith((MODE_B, SEARCHES)):
        return False
    entries = [row, *row.get("passes", {}).values()]
    entries += [entry["second_thread"] for entry in entries if "second_thread" in entry]
    return any(rows.tells_of_a_lost_gpu(entry.get("error", "")) for entry in entries)


def _steps(
    calls: Mapping[str, ConvCall],
    parts: Sequence[str],
    oracle: PlanOracle,
    children: Mapping[str, Child],
    device: torch.device,
    deadline: float,
) -> dict[str, Step]:
    """What makes each row, by the row's key; a step that gives None had not enough time."""
    steps: dict[str, Step] = {}
    if "match" in parts:
        for key, call in calls.items():
            steps[key] = functools.partial(measure_call, call, oracle, device)
    for what, count in ((MODE_B, rows.MODE_B_PROBLEMS), (SEARCHES, rows.SEARCHED_PROBLEMS)):
        if what in parts:
            for key in _spread(calls, count):
                steps[f"{what} {key}"] = functools.partial(children[what].measure, calls[key])
    if "host" in parts:
        for key, (what, case) in HOST_CASES.items():
            steps[key] = functools.partial(measure_host, what, case, device)
    if "memory" in parts:
        steps["memory"] = functools.partial(measure_memory, device, deadline)
    return steps


def _spread(calls: Mapping[str, ConvCall], count: int) -> list[str]:
    """Keys of so many calls of ordinary size, evenly spread over all."""
    keys = [key for key in calls if not key.startswith(rows.LARGE)]
    count = min(count, len(keys))
    return [keys[index * len(keys) // count] for index in range(count)]


class _Saver(contextlib.AbstractContextManager["_Saver"]):
    """Saves rows every now and then, and when it is left, by an error too."""

    def __init__(self, file: results.ResultFile) -> None:
        self._file = file
        self._rows: dict[str, results.Row] = {}
        self._saved = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self._save()

    def add(self, key: str, row: results.Row) -> None:
        self._rows[key] = row
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self._save()

    def _save(self) -> None:
        if self._rows:
            self._file.add_all(self._rows)
            self._rows = {}
        self._saved = time.monotonic()

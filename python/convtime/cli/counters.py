"""`convtime counters`: read hardware counters of a statement's kernels."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, get_args

from convtime.cli import arguments, snippet
from convtime.cli.output import add_outputs, deliver_result
from convtime.core import codec
from convtime.core.checks import require
from convtime.counting.costs import energy, peak_memory
from convtime.counting.counters import DEFAULT_METRICS, CounterCache, Replay, counters
from convtime.counting.metrics import GROUPS, counter_names
from convtime.counting.nvprof import NVPROF
from convtime.counting.results import Counters, CountersUnavailable
from convtime.view import text


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reads hardware counters of each kernel that a statement launches, with "
        f"convtime.counters. {snippet.NAMESPACE_HELP} "
        "For example: convtime counters 'torch.relu(x)' --setup 'x = torch.randn(1 << 20)'"
    )
    snippet.add_statement(parser, "count", nargs="*")
    parser.add_argument(
        "--metrics",
        default=",".join(DEFAULT_METRICS),
        metavar="NAME,...",
        help="groups, metrics by NVIDIA's or nvprof's names, or all (default: %(default)s)",
    )
    parser.add_argument(
        "--list",
        nargs="?",
        const="",
        metavar="PART",
        help="only list the groups, and this GPU's metrics with PART in their names",
    )
    parser.add_argument("--name", help="name of the result (default: the statement)")
    snippet.add_setup_options(parser)
    parser.add_argument(
        "--repeats", type=arguments.count, default=1, metavar="N", help="count everything N times"
    )
    parser.add_argument(
        "--replay",
        choices=get_args(Replay),
        default="kernel",
        help="unit to replay until everything is counted (default: %(default)s)",
    )
    parser.add_argument(
        "--cache",
        choices=get_args(CounterCache),
        default="cold",
        help="state of the L2 cache before each call (default: %(default)s)",
    )
    parser.add_argument("--energy", action="store_true", help="also read the energy of a call")
    parser.add_argument("--memory", action="store_true", help="also read a call's peak memory")
    parser.add_argument("--device", help=arguments.DEVICE_HELP)
    add_outputs(parser, verbose=True)


def run(options: argparse.Namespace) -> None:
    if options.list is not None:
        _list(options)
        return
    require(options.statement, "STATEMENT or --list is required (see convtime counters --help)")
    statement = snippet.statement_of(options.statement)
    with snippet.prepare(options) as (namespace, device):
        counted = _read(statement, options, namespace)
    snippet.deliver(options, counted, device)


def _read(statement: str, options: argparse.Namespace, namespace: dict[str, Any]) -> Counters:
    candidate = snippet.candidate_of(statement, options, namespace, name=options.name)
    counted = counters(
        candidate,
        metrics=options.metrics,
        repeats=options.repeats,
        replay=options.replay,
        cache=options.cache,
        device=options.device,
    )
    costs: dict[str, Any] = {}
    if options.energy:
        costs["energy"] = energy(candidate, device=options.device)
    if options.memory:
        costs["peak_memory"] = peak_memory(candidate, device=options.device)
    return dataclasses.replace(counted, **costs)


def _list(options: argparse.Namespace) -> None:
    part = options.list.casefold()
    groups = [
        (name, f"{group.description}: {', '.join(names[0] for names in group.metrics.values())}")
        for name, group in GROUPS.items()
    ]
    old = [(name, " + ".join(terms)) for name, terms in NVPROF.items() if part in name or not part]
    try:
        metrics, why_not = counter_names(options.list, options.device), ""
    except CountersUnavailable as error:
        metrics, why_not = (), f"the metrics of a GPU are not listed: {error}"
    document = {
        "groups": {name: [*group.metrics.values()] for name, group in GROUPS.items()},
        "nvprof": {name: dict(NVPROF[name]) for name, _ in old},
        "metrics": [codec.encode(metric) for metric in metrics],
        "metrics_reason": why_not,
    }
    parts = [
        text.table(("group", ""), groups),
        text.table(
            ("metric", "unit", ""),
            [(metric.name, metric.unit, metric.description) for metric in metrics],
        )
        if metrics
        else "",
        text.table(("nvprof's name", "today's"), old) if old else "",
        why_not,
    ]
    deliver_result(
        options, lambda: "\n\n".join(filter(None, parts)), lambda: codec.to_json(document)
    )

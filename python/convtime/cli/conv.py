"""`convtime conv`: time PyTorch's convolution layers against convtime's."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from convtime.cli import arguments
from convtime.cli.layers import FormedLayer, add_layer_options, layers_of, model_of
from convtime.cli.output import (
    add_outputs,
    deliver_result,
    print_result,
    printed_outputs,
)
from convtime.cli.verdicts import add_verdict_options, judge
from convtime.conv.plans.loading import is_in_use, load_plans
from convtime.conv.plans.plan_set import Plans
from convtime.conv.problem import FORWARD, PASSES
from convtime.device.provenance import provenance
from convtime.device.resolve import resolve_device
from convtime.layers import show as convolutions
from convtime.layers.compare import MARGIN, LayerResult, StepResult, compare_layers, compare_step
from convtime.layers.show import layers_figure
from convtime.timing.comparison import FINDS
from convtime.timing.verdict import Finding
from convtime.view.progress import ProgressBar

# Sampling time for a pass in seconds. A CPU's times scatter more, and a longer time helps less.
_BUDGET = {"cuda": 1.0, "cpu": 0.5}


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Times convolutions of torch.nn and convtime.nn, interleaved, and compares "
        "their results and kernels: on every distinct one of ResNet-50, of a CSV file, or of a "
        "model, or on problems in one line each. For a model, it also times the training step, "
        "before and after convtime.nn.replace. For each slower or different layer it prints the "
        "command that runs it again."
    )
    add_layer_options(parser)
    parser.add_argument(
        "--backward",
        action=argparse.BooleanOptionalAction,
        help="time the gradients too (default: with --model, whose step is forward and backward)",
    )
    parser.add_argument(
        "--plans",
        type=arguments.file_name,
        metavar="FILE",
        help="let convtime's side use the plans of this file, which convtime tune --save writes",
    )
    parser.add_argument("--device", help=arguments.DEVICE_HELP)
    parser.add_argument(
        "--budget",
        type=arguments.seconds,
        metavar="SECONDS",
        help="sampling time for each pass, both sides together (default: 1 on a GPU, 0.5 on a CPU)",
    )
    add_verdict_options(
        parser,
        FINDS,
        f"a layer is slower or faster than PyTorch's by more than {100 * MARGIN:g} %, this is "
        "uncertain, its result is different (other bits although PyTorch's own repeat), or busy "
        "time and span contradict each other",
    )
    add_outputs(parser, table=True, reads={"--layers": "layers"})


def run(options: argparse.Namespace) -> int:
    # Check all inputs before the first layer is timed.
    device = resolve_device(options.device)
    plans = None if options.plans is None else load_plans(options.plans)
    budget = options.budget or _BUDGET[device.type]
    model = model_of(options, device)
    layers, empty = layers_of(options, model, device)
    backward = model is not None if options.backward is None else options.backward
    step = None
    if model and backward:
        step = compare_step(model, dtype=options.dtype, layout=options.layout, budget=budget)
    del model  # the layers need its memory
    passes = PASSES if backward else (FORWARD,)
    facts = provenance(device)
    forms = dict.fromkeys(f"{dtype}, {layout}" for _, dtype, layout in layers)
    title = f"{facts['gpu'] or facts['cpu']}; {' and '.join(forms)}"
    heading = "" if printed_outputs(options) else f"{title}; torch {facts['torch']}\n"
    results = _compare(layers, passes, heading, device=device, budget=budget)
    code, why = judge([*_findings(results, step)], options)

    def text() -> str:
        # After the table, which _compare prints.
        parts = [
            convolutions.methods_line(results),
            convolutions.remark_on_few_samples(results),
            convolutions.summary(results),
            convolutions.kernels(results) if options.model else "",
            convolutions.reproducers(results),
            convolutions.empty_line(empty),
        ]
        if plans is not None:
            parts.append(f"plans of {options.plans}:\n{_in_use(plans)}")
        if step:
            parts += [step.replaced, convolutions.step_line(step)]
        return "\n" + "\n\n".join(filter(None, parts))

    deliver_result(
        options,
        text,
        lambda: convolutions.to_json(results, facts, step, empty),
        why,
        csv=lambda: convolutions.to_csv(results),
        plot=lambda: layers_figure(results, title).content(options.plot.suffix),
    )
    return code


def _in_use(plans: Plans) -> str:
    """Return a line for each plan: PyTorch's engine, and the one in its place."""
    return "\n".join(
        f"{entry.problem}: {(entry.facts and entry.facts.pytorch_tag) or 'PyTorch'} → "
        f"{entry.choice if is_in_use(entry) else 'could not be used'}"
        for entry in plans.entries
    )


def _compare(
    layers: Sequence[FormedLayer], passes: Sequence[str], heading: str, **conditions: Any
) -> list[LayerResult]:
    """Compare all layers; with a heading, print it and each row of the table when it is known."""
    comparisons = itertools.chain.from_iterable(
        compare_layers([layer], passes=passes, dtype=dtype, layout=layout, **conditions)
        for layer, dtype, layout in layers
    )
    total = len(layers) * len(passes)
    results: list[LayerResult] = []
    with ProgressBar(total, "pass") as bar:

        def with_progress() -> Iterator[LayerResult]:
            for result in comparisons:
                results.append(result)
                bar.update(advance=1)
                yield result

        if not heading:
            return [*with_progress()]
        known = convolutions.titles_and_labels((layer for layer, *_ in layers), passes)
        lines = convolutions.table_lines(with_progress(), known)
        for line in itertools.chain([heading], lines):
            with bar.hidden():
                print_result(line)
    return results


def _findings(results: Sequence[LayerResult], step: StepResult | None) -> Iterator[Finding]:
    """Yield the findings for layers and the step, with their titles; a layer can have several."""
    for result in results:
        yield result.title, result.verdict
        if result.is_different:
            yield result.title, "different"
        if result.contradiction:
            yield result.title, "contradictory"
    if step is not None:
        yield "the training step", step.ratio.verdict(MARGIN)

"""Whether `convtime upgrade` finds what one interpreter does slower, where, and why.

Both interpreters are this one: the new one runs another model file, other settings or another
environment. A row is one run of the command, on a group of independent layers in some of which
something is planted (see upgrade_parts/plants.py), or on an unchanged ResNet-50.

The truth is how long each pass of each layer takes by torch.profiler's kernels, or on the CPU by
Python's clock, in a process of each side. A plant counts if it makes a pass of its layer slower by
2 % or more; it is judged by the pass that it slows down most. Not more large plants count than
small ones, which cost 2 to 10 % of their layer. A layer in which nothing is planted is unchanged,
and so is the backward pass where extra work is planted in the forward pass. Any of these that is
found slower or faster is a false alarm.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import results
from common import running, summaries

if TYPE_CHECKING:
    import torch

LEAST = 1.02
SMALL = 1.10  # up to which a plant is small
RESNET50, IN_HALF = "ResNet-50", "ResNet-50 in float16, channels_last"


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """How many plants were found and explained, and how many unchanged passes were not left so."""
    plants = [plant for row in rows for plant in counted(row)]
    unchanged = [found for row in rows for found in row["unchanged"].values()]
    summary: dict[str, float] = {
        "unchanged": len(unchanged),
        "false_alarms": sum(map(_is_alarm, unchanged)),
    }
    if plants:
        small = sum(plant["truth"] <= SMALL for plant in plants)
        summary["planted"] = small + min(small, len(plants) - small)
        summary["right_layer"] = sum(map(_is_found, plants)) / len(plants)
        summary["right_cause"] = sum(
            _is_found(plant) and plant["cause"] == plant["right_cause"] for plant in plants
        ) / len(plants)
    for row in rows:
        if row["key"] == RESNET50:
            summary["resnet50_s"] = row["seconds"]
    return summary


def counted(row: results.Row) -> list[results.Row]:
    """The plants that cost enough to be found."""
    return [plant for plant in row["plants"].values() if plant["truth"] >= LEAST]


def _is_alarm(found: results.Row) -> bool:
    return summaries.is_certain(found["verdict"])


def _is_found(plant: results.Row) -> bool:
    return bool(plant["verdict"] == "slower")


def table(rows: list[results.Row]) -> str:
    lines = []
    for row in rows:
        for name, plant in row["plants"].items():
            if plant["truth"] >= LEAST:
                ratio, found = plant["ratio"], plant["verdict"]
                if ratio is not None:
                    found = f"{ratio:.4f} ({found})"
                cells = (row["key"], name, plant["which"], f"{plant['truth']:.4f}", found)
                lines.append((*cells, plant["cause"] or "–", plant["right_cause"]))
    header = "group | layer | pass | true ratio: | found: | cause | right cause"
    return summaries.markdown(header, lines)


def tell(row: results.Row) -> str:
    plants = counted(row)
    right = sum(plant["cause"] == plant["right_cause"] for plant in plants)
    alarms = [title for title, found in row["unchanged"].items() if _is_alarm(found)]
    return (
        f"{sum(map(_is_found, plants))} of {len(plants)} found, {right} explained; "
        f"{len(row['unchanged'])} unchanged, false alarms: {', '.join(alarms) or 'none'}; "
        f"{row['seconds']:.0f} s"
    )


def cases_on(device: torch.device) -> dict[str, running.Measure]:
    from upgrade_parts.measure import measure_group, measure_unchanged
    from upgrade_parts.plants import ON_CPU, ON_GPU

    groups = ON_CPU if device.type == "cpu" else ON_GPU
    shape = (2, 3, 32, 32) if device.type == "cpu" else (32, 3, 224, 224)
    models = {
        RESNET50: "resnet50:ResNet50",
        IN_HALF: "upgrade_parts.planted_model:resnet50_in_half",
    }
    if device.type == "cpu":
        del models[IN_HALF]
    of_models = {
        key: functools.partial(measure_unchanged, model, shape, device)
        for key, model in models.items()
    }
    of_groups = {
        key: functools.partial(measure_group, group, device) for key, group in groups.items()
    }
    return {RESNET50: of_models.pop(RESNET50), **of_groups, **of_models}


if __name__ == "__main__":
    running.run_on_gpu("upgrade", __doc__, summarise, cases_on, tell=tell, anywhere=True)

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

import functools

import results
from common import running, summaries

LEAST = 1.02
SMALL = 1.10  # up to which a plant is small
RESNET50, IN_HALF = "ResNet-50", "ResNet-50 in float16, channels_last"


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """How many plants were found and explained, and how many unchanged passes were not left so."""
    plants = [plant for row in rows for plant in counted(row)]
    unchanged = [found for row in rows for found in row["unchanged"].values()]
    small = sum(plant["truth"] <= SMALL for plant in plants)
    return summaries.known(
        unchanged=len(unchanged),
        false_alarms=sum(map(_is_alarm, unchanged)),
        planted=small + min(small, len(plants) - small) if plants else None,
        right_layer=summaries.share(map(_is_found, plants)),
        right_cause=summaries.share(_is_found(plant) and _is_explained(plant) for plant in plants),
        resnet50_s=summaries.by_key(rows).get(RESNET50, {}).get("seconds"),
    )


def counted(row: results.Row) -> list[results.Row]:
    """The plants that cost enough to be found."""
    return [plant for plant in row["plants"].values() if plant["truth"] >= LEAST]


def _is_alarm(found: results.Row) -> bool:
    return summaries.is_certain(found["verdict"])


def _is_found(plant: results.Row) -> bool:
    return bool(plant["verdict"] == "slower")


def _is_explained(plant: results.Row) -> bool:
    return bool(plant["cause"] == plant["right_cause"])


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
    alarms = [title for title, found in row["unchanged"].items() if _is_alarm(found)]
    return (
        f"{sum(map(_is_found, plants))} of {len(plants)} found, "
        f"{sum(map(_is_explained, plants))} explained; "
        f"{len(row['unchanged'])} unchanged, false alarms: {', '.join(alarms) or 'none'}; "
        f"{row['seconds']:.0f} s"
    )


def cases_on(device: running.Device) -> dict[str, running.Measure]:
    from upgrade_parts.measure import measure_group, measure_unchanged
    from upgrade_parts.plants import ON_CPU, ON_GPU

    on_cpu = device.type == "cpu"
    shape = (2, 3, 32, 32) if on_cpu else (32, 3, 224, 224)

    def of_model(model: str) -> running.Measure:
        return functools.partial(measure_unchanged, model, shape, device)

    cases = {RESNET50: of_model("resnet50:ResNet50")}
    for key, group in (ON_CPU if on_cpu else ON_GPU).items():
        cases[key] = functools.partial(measure_group, group, device)
    if not on_cpu:
        cases[IN_HALF] = of_model("upgrade_parts.planted_model:resnet50_in_half")
    return cases


if __name__ == "__main__":
    running.run_on_gpu("upgrade", __doc__, summarise, cases_on, tell=tell, anywhere=True)

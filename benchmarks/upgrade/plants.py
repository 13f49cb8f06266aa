"""What is planted: groups of layers, and what the new side of each has otherwise."""

import copy
import dataclasses
import random
from collections.abc import Mapping
from typing import Any

Site = dict[str, Any]

# Shares of its time by which a plant makes a site slower: they leave room below upgrade's SMALL
# for what is not quite as it was calculated.
_DRAWN = (0.04, 0.08)
# What both sides have where the new one is to have more of the same.
_ON_BOTH_SIDES = {"spin": 10e-6, "buffer": 2**19}


def _site(
    kind: str, sizes: list[int], dtype: str = "float32", *, nhwc: bool = False, **args: Any
) -> Site:
    return {"kind": kind, "args": args, "input": sizes, "dtype": dtype, "channels_last": nhwc}


def _conv(inputs: int, outputs: int, kernel: int, *more: Any, **args: Any) -> Site:
    args |= {"in_channels": inputs, "out_channels": outputs, "kernel_size": kernel}
    return _site("Conv2d", *more, bias=False, **args)


#: Layers that take 50 µs or more on an H100: the host's work is hidden behind theirs.
GPU_SITES: dict[str, Site] = {
    "conv3": _conv(64, 64, 3, [128, 64, 56, 56], padding=1),
    "conv3_half": _conv(128, 128, 3, [64, 128, 56, 56], "float16", nhwc=True, padding=1),
    "conv1": _conv(256, 64, 1, [32, 256, 56, 56]),
    "conv3_deep": _conv(256, 256, 3, [64, 256, 28, 28], "float16", nhwc=True, padding=1),
    "conv5": _conv(64, 128, 5, [128, 64, 56, 56], "float16", nhwc=True, stride=2, padding=2),
    "depthwise": _conv(128, 128, 3, [64, 128, 56, 56], padding=1, groups=128),
    "first": _conv(3, 64, 7, [128, 3, 224, 224], stride=2, padding=3),
    "conv1_wide": _conv(64, 256, 1, [64, 64, 56, 56], "float16"),
    "linear_half": _site("Linear", [16384, 1024], "float16", in_features=1024, out_features=1024),
    "linear": _site("Linear", [8192, 1024], in_features=1024, out_features=512),
    "linear_bf16": _site("Linear", [4096, 4096], "bfloat16", in_features=4096, out_features=1024),
    "batch_norm": _site("BatchNorm2d", [128, 64, 56, 56], num_features=64),
    "batch_norm_half": _site(
        "BatchNorm2d", [64, 256, 28, 28], "float16", nhwc=True, num_features=256
    ),
    "layer_norm": _site("LayerNorm", [16384, 1024], normalized_shape=1024),
    "group_norm": _site("GroupNorm", [32, 256, 28, 28], num_groups=32, num_channels=256),
    "gelu": _site("GELU", [24_000_000]),
    "silu": _site("SiLU", [20_000_000], "float16"),
    "softmax": _site("Softmax", [16384, 1024], dim=-1),
    "max_pool": _site("MaxPool2d", [128, 64, 56, 56], kernel_size=3, stride=2, padding=1),
    "avg_pool": _site("AvgPool2d", [128, 64, 56, 56], "float16", nhwc=True, kernel_size=2),
    "hardswish": _site("Hardswish", [24_000_000]),
}
_CONVS = [name for name, site in GPU_SITES.items() if site["kind"] == "Conv2d"]


@dataclasses.dataclass(frozen=True)
class Group:
    """Layers that one `convtime upgrade` compares, and what is planted in them.

    `plants` names what is planted in a layer alone: one of CHANGES, or a kind of extra work.
    `flags` are settings of torch, of either side, which may make the `flagged` layers slower. With
    `blocks_engines`, the new side may not use the engines of cuDNN that the old one uses; all
    layers may then be slower.
    """

    sites: dict[str, Site]
    plants: Mapping[str, str] = dataclasses.field(default_factory=dict)
    flags: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    flagged: tuple[str, ...] = ()
    blocks_engines: bool = False

    def cause(self, site: str) -> str | None:
        """The right cause of a slower layer; None of one that is to be unchanged."""
        if self.blocks_engines:
            return "plan" if self.sites[site]["kind"] == "Conv2d" else None
        if site in self.flagged:
            return "flag"
        planted = self.plants.get(site)
        return None if planted is None else CAUSES[planted]

    def unchanged(self, site: str, which: str) -> bool:
        """Whether a pass does the same work on both sides: extra work is in the forward pass."""
        in_forward_only = self.plants.get(site) in EXTRA_CAUSES
        return self.cause(site) is None or (in_forward_only and which == "backward")

    def old(self) -> Site:
        sites = copy.deepcopy(self.sites)
        for name, planted in self.plants.items():
            if planted in _ON_BOTH_SIDES:
                sites[name]["extra"] = {planted: _ON_BOTH_SIDES[planted]}
        return {"flags": dict(self.flags[0]), "sites": sites}

    def new(self, truth: Mapping[str, Any]) -> Site:
        """The description of the new side, from how long the old one takes; see truth.py."""
        described = self.old() | {"flags": dict(self.flags[1])}
        for name, planted in self.plants.items():
            site = described["sites"][name]
            if planted in CHANGES:
                _change(site, planted)
                continue
            share = random.Random(name).uniform(*_DRAWN)  # noqa: S311  # no secret
            more = share * truth["seconds"][name]["forward"] * truth["rates"].get(planted, 1)
            site["extra"] = {planted: site.get("extra", {}).get(planted, 0) + more}
        return described


CHANGES = ("padding", "channels", "sizes", "layout", "dtype")


def _change(site: Site, what: str) -> None:
    arguments = site["args"]
    match what:
        case "padding":
            arguments["padding"] = arguments.get("padding", 0) + 1
        case "channels":
            name = "out_channels" if site["kind"] == "Conv2d" else "out_features"
            arguments[name] += arguments[name] // 16
        case "sizes":
            site["input"][0] += max(1, site["input"][0] // 20)
        case "layout":
            site["channels_last"] = not site["channels_last"]
        case "dtype":
            site["dtype"] = "float64" if site["dtype"] == "float32" else "float32"


#: Causes of extra work: another kernel, or more of the same.
EXTRA_CAUSES = {"copy": "kernels", "cast": "kernels", "spin": "unknown", "buffer": "unknown"}
CAUSES = {name: name for name in CHANGES} | {"padding": "module", "channels": "module"}
CAUSES |= EXTRA_CAUSES


def _by_site(sites: Mapping[str, str]) -> dict[str, str]:
    return {name: kind for kind, names in sites.items() for name in names.split()}


_FIRST = _by_site(
    {
        "copy": "conv3 conv5 linear layer_norm max_pool hardswish",
        "cast": "first group_norm",
        "spin": "conv3_half conv1_wide linear_bf16 silu softmax",
        "buffer": "depthwise batch_norm",
        "padding": "conv1",
        "sizes": "conv3_deep linear_half batch_norm_half gelu",
    }
)
_SECOND = _by_site(
    {
        "copy": "conv1 silu",
        "cast": "hardswish",
        "spin": "first layer_norm",
        "buffer": "softmax",
        "padding": "conv3",
        "channels": "conv5 linear",
        "sizes": "depthwise batch_norm group_norm max_pool",
        "layout": "conv3_half conv1_wide batch_norm_half avg_pool",
        "dtype": "conv3_deep linear_half",
    }
)
#: All of them small: extra work that takes as long as it is to, and more of the same work.
_THIRD = _by_site(
    {"spin": "conv3 depthwise gelu avg_pool", "sizes": "layer_norm silu softmax hardswish"}
)
_UNAFFECTED = ("linear_bf16", "layer_norm", "gelu", "softmax")
_TF32_FLAGS = ("cuda.matmul.allow_tf32", "cudnn.allow_tf32")
_IN_TF32 = ("conv3", "conv1", "first", "linear")


def _some(*names: str) -> dict[str, Site]:
    return {name: GPU_SITES[name] for name in names}


ON_GPU: dict[str, Group] = {
    "layers": Group(GPU_SITES, _FIRST),
    "layers, others": Group(GPU_SITES, _SECOND),
    "layers, small": Group(_some(*_THIRD), _THIRD),
    "no TF32": Group(
        _some(*_IN_TF32, "conv3_half", "linear_half", *_UNAFFECTED),
        flags=(dict.fromkeys(_TF32_FLAGS, True), dict.fromkeys(_TF32_FLAGS, False)),
        flagged=_IN_TF32,
    ),
    "no cuDNN": Group(
        _some(*_CONVS, *_UNAFFECTED), flags=({}, {"cudnn.enabled": False}), flagged=tuple(_CONVS)
    ),
    "blocked engines": Group(_some(*_CONVS, *_UNAFFECTED), blocks_engines=True),
    "unchanged": Group(GPU_SITES),
}


def errata(plans: Mapping[str, Mapping[str, list[str]]]) -> Site:
    """What has cuDNN's frontend refuse the engines of these plans, by tags such as ConvFwd_eng3."""
    engines = dict.fromkeys(
        tuple(tag.partition("_k")[0].rsplit("_eng", 1))
        for passes in plans.values()
        for tags in passes.values()
        for tag in tags
    )
    every = {"knob": [], "cudnn_version_start": 8000, "cudnn_version_end": -1}
    rules = [
        {"rule_id": f"{name}_eng{engine}", "operation": name, "engine": int(engine), **every}
        for name, engine in engines
    ]
    return {"version": 1, "rules": rules}

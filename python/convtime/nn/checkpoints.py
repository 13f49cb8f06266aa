"""Calls of torch.utils.checkpoint in a graph that Dynamo captured.

Such a call is one node, whose first argument is a graph of its own.
"""

from __future__ import annotations

import copy
import operator

import torch
from torch import fx


def inline_checkpoints(module: fx.GraphModule) -> list[fx.GraphModule]:
    """Replace calls of checkpoint by what they call, where no gradient is needed.

    There, checkpoint does nothing else. The other calls get copies of their graphs, which may
    then be changed; Dynamo reads the originals later.

    Returns:
        The graphs of the calls that are left.
    """
    left: list[fx.GraphModule] = []
    graph = module.graph
    target = torch.ops.higher_order.tag_activation_checkpoint
    for node in graph.find_nodes(op="call_function", target=target):
        source, *arguments = node.args
        called = getattr(module, source.target)
        body = fx.GraphModule(called, copy.deepcopy(called.graph))
        nested = inline_checkpoints(body)
        if nested or not _is_inlinable(node, body):
            setattr(module, source.target, body)
            left += [body, *nested]
            continue
        values = dict(zip(body.graph.find_nodes(op="placeholder"), arguments, strict=True))
        with graph.inserting_before(node):
            results = graph.graph_copy(body.graph, values)
        assert isinstance(results, tuple)  # as Dynamo's graphs return
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
        if not source.users:
            graph.erase_node(source)
    return left


def _is_inlinable(node: fx.Node, body: fx.GraphModule) -> bool:
    """Whether no result needs a gradient, and the graph can be copied to another module."""
    return (
        not any(tensor.requires_grad for tensor in _tensors(node))
        and not body.graph.find_nodes(op="get_attr")
        and all(user.target is operator.getitem for user in node.users)
    )


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    values = node.meta.get("example_value") or ()
    return [value for value in values if isinstance(value, torch.Tensor)]

"""Convolutions as things to study: problems, what PyTorch runs for them, and comparisons.

Imports nothing: the child of convtime.conv.plan_oracle loads this without convtime's core.
"""

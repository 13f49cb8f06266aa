"""Describe convolutions, report the kernels that PyTorch runs for them, and compare their times.

This file imports nothing: the child process of convtime.conv.plan_oracle loads it without
convtime's core.
"""

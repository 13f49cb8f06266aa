"""Measurements that all ranks of a process group take together."""

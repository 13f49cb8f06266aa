"""Integrations of convtime into other programs."""

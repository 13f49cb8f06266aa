"""Explain an operation's time: contrasts collect evidence, and rules derive causes from it."""

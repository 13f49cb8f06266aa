"""Measurements to and from files: convtime's own, and those of other tools."""

from convtime.results.exchange.files import read_measurements as read_measurements
from convtime.results.exchange.files import write_measurements as write_measurements

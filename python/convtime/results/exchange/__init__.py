"""Read and write measurements in convtime's formats and in those of other tools."""

from convtime.results.exchange.files import read_measurements as read_measurements
from convtime.results.exchange.files import write_measurements as write_measurements

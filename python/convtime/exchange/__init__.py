"""Read and write measurements in convtime's formats and in those of other tools."""

"""The history of a suite's times: its files, its order, its change points, and how it is shown."""

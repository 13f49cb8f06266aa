"""Which work a program's regions and a model's modules issue, and how long it takes."""

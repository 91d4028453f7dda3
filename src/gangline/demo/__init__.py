"""The demo: one job per file of a directory, run by worker processes and checked against a plain loop."""

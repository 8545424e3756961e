"""Measurements: one module per subject, each run as `python -m bench NAME --json`."""

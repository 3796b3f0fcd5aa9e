"""Measured results: their form in docs/results, how scripts write them, how they are shown. Not shipped."""

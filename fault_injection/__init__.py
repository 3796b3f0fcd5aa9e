"""Numbered faults and the simulated GPU: what the guard is tested with, never part of the product."""

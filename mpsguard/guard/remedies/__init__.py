"""Remedies for incidents: one file per remedy, and the pure policy that decides which ones are applied."""

"""Prometheus metrics of the guard."""

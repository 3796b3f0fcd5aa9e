"""Sensors: each watches one source of evidence, may be absent, and says why if it is."""

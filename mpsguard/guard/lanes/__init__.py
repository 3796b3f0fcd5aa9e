"""Lanes: one stock MPS control daemon each, driven as its own command line drives it."""

"""The tour that `make demo` gives: what stock MPS does and what happens through mpsguard, seen side by side.

Everything it says was observed in the very run that says it; where an observation is not what the tour announced, it is
printed as it is, marked, and the run fails.
"""

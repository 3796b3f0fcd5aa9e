"""The tour of `make demo`: stock MPS and mpsguard side by side.

Everything it prints was observed in the same run. If an observation differs from what the tour announced, it is printed
and marked, and the run fails.
"""

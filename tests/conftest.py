"""What holds for every test."""

from hypothesis import settings

# How long an example takes is no property of what is tested: a machine may be busy. Where CI is set, Hypothesis says
# the same by itself.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")

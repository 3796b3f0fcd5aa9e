"""What can go wrong in a suite, each with one line of text for the operator."""


class SuiteError(Exception):
    """A measurement could not be made: something did not start, answer or end as it must."""


class NotRunError(Exception):
    """This machine cannot run the suite (no GPU, no MPS, no compiler); exit status 77 by convention."""

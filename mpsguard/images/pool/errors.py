"""The errors of a pool; the text of each is one line for the user."""


class PoolError(Exception):
    """A pool that cannot be reached, does not answer, or refuses a request."""

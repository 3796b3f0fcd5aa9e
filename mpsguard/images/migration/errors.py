"""The errors of migrations."""


class MigrationError(Exception):
    """The session stays where it is, and its program goes on there if it runs."""

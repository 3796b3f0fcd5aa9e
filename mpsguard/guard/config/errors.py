"""What a wrong configuration raises."""


class ConfigError(Exception):
    """The configuration is invalid; one line says file, key, and what is allowed."""

"""The command lines `mpsguard` and `mpsguard-ctl`, one file a command."""

try:
    import click  # noqa: F401 - every command needs it
except ModuleNotFoundError as error:
    # An environment of an application: the extras of `mpsguard.client` bring no command line.
    from mpsguard.linux.extras import how_to_install

    raise SystemExit(f"mpsguard: the commands need {error.name}: {how_to_install('ctl')}") from None

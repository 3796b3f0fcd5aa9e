"""A guard with two defects: command ``metrics`` and page ``/livez`` raise exceptions that nothing expects."""

from typing import NoReturn, cast
from unittest.mock import patch

import msgspec

from mpsguard.cli.guard import main
from mpsguard.guard.control_api.health import ProbeKind
from mpsguard.guard.control_api.protocol import NoArguments
from mpsguard.guard.control_api.server import Handler
from mpsguard.guard.daemon.commands import table
from mpsguard.guard.daemon.guard import Guard


async def command(_: Guard, __: NoArguments) -> msgspec.Struct:
    raise ZeroDivisionError


def page(_: Guard, __: ProbeKind) -> NoReturn:
    raise RuntimeError


if __name__ == "__main__":
    cast("dict[str, object]", table.HANDLERS)["metrics"] = Handler("metrics", NoArguments, command)
    with patch("mpsguard.guard.daemon.site.probe", page):
        main()

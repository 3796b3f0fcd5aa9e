"""A machine in which a Python program of `mpsguard` watches a client of the driver."""

from __future__ import annotations

from tests.vm.guest_programs import SOURCES, program
from tests.vm.guests import LOAD, UNLOAD, with_modules
from tests.vm.machine import Run, boot
from tests.vm.python_archive import add_python, run
from tests.vm.sources import Kernel
from tests.vm.workshop import Modules


def boot_watched(kernel: Kernel, modules: Modules, client: str, words: str, *, deadline_s: float) -> Run:
    """Boot it with the modules loaded.

    Args:
        kernel: of the machine.
        modules: of the driver.
        client: name of the client's program.
        words: name of the Python program, which starts the client and prints lines, and its arguments.
        deadline_s: for the machine to end.
    """
    archive = with_modules(modules)
    archive.file(client, program(client, modules.tree))
    watching = words.split(maxsplit=1)[0]
    archive.file(watching, SOURCES / watching)
    add_python(archive)
    steps = [*LOAD, f"{run(f'/{words}')} >/dev/ttyS1 2>/dev/console; S=$?", *UNLOAD, "(exit $S)"]
    return boot(kernel, archive, steps, deadline_s=deadline_s)

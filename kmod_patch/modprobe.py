"""The line in modprobe.d with which `modprobe nvidia-uvm` takes our module where it fits, else the stock one."""

import re
from pathlib import Path
from typing import Final

from kmod_patch.errors import ToolError
from kmod_patch.program import run

STOCK: Final = "nvidia-uvm"
DEADLINE_S: Final = 60.0
_COMMAND: Final = re.compile(r"^install nvidia_uvm (?P<command>.+)$", re.MULTILINE)
_PLACES: Final = ("etc", "run", "usr/local/lib", "usr/lib", "lib")
"""Where modprobe looks for modprobe.d (modprobe.d(5)), below /."""


def line(name: str, stock: str) -> str:
    """Return the text for modprobe.d.

    Ours is loaded if it was built for this kernel, is of the version of the nvidia module that is loaded, and the
    kernel takes it. Else the kernel's log says so, and what would have been done without this line is done.

    Args:
        name: Our module, as its file is called.
        stock: The command that loads the stock module.
    """
    same = f'[ "$(modinfo -F version {name} 2>/dev/null)" = "$(cat /sys/module/nvidia/version)" ]'
    told = f"echo 'mpsguard-kmod: {name} is not there, or does not fit: the stock module is loaded' >/dev/kmsg"
    return (
        "# Written by mpsguard-kmod; `mpsguard-kmod dkms --remove` goes back to the stock module.\n"
        f"install {STOCK} {{ modprobe nvidia && {same} && modprobe {name} $CMDLINE_OPTS; }} || {{ {told}; {stock}; }}\n"
    )


def commands(root: Path) -> list[str]:
    """Return what the lines in modprobe.d do for `modprobe nvidia-uvm`; the first is done, and no other.

    Raises:
        ToolError: modprobe is not installed, or cannot read its own settings.
    """
    places = [place for name in _PLACES if (place := root / name / "modprobe.d").is_dir()]
    if not places:
        return []
    # Without -C modprobe would read the settings of this machine, not those of the image at `root`.
    options = [part for place in places for part in ("-C", str(place))]
    told = run(["modprobe", *options, "-c"], deadline_s=DEADLINE_S, failure=ToolError)
    return [found["command"].strip() for found in _COMMAND.finditer(told)]


def stock_command(name: str, root: Path) -> str:
    """Return the command that loads the stock module: that of the distribution's modprobe.d, if it has one.

    Debian's packages do: their modules have other names than the vendor's.
    """
    others = [command for command in commands(root) if name not in command]
    return others[0] if others else f"modprobe --ignore-install {STOCK} $CMDLINE_OPTS"


def require_first(name: str, root: Path) -> None:
    """Raises ToolError if another line of modprobe.d comes before ours."""
    first = commands(root)[0]
    if name not in first:
        raise ToolError(f"modprobe.d has a line for {STOCK} that comes before ours: install {STOCK} {first}")

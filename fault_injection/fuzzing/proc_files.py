"""What /proc says of a stranger's process: its memory map, environment, command line and cgroup."""

from random import Random
from typing import Final

import msgspec

from fault_injection.fuzzing.mutation import changed_text, index
from fault_injection.fuzzing.surface import BrokenPromiseError, Surface
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.reserved_ranges import parse_maps

_MAP: Final = (
    b"200000000-200200000 rw-s 00000000 00:05 1036                /dev/nvidiactl\n",
    b"7f48a3600000-7f48a3800000 ---p 00000000 00:00 0 \n",
    b"7f48a3800000-7f48a3801000 r-xp 00001000 fe:00 77            /tmp/a name\r7f0000000000-7f0000200000 ---p\n",
    b"7ffd5a3c8000-7ffd5a3e9000 rw-p 00000000 00:00 0             [stack]\n",
)
_STATUS: Final = b"Name:\t%s\nUmask:\t0022\nUid:\t65534\t65534\t65534\t65534\nGid:\t65534\t1\t1\t1\nNSpid:\t4711\t7\n"
"""Its first line has what the process calls itself: newlines and backslashes are escaped, and nothing else is."""
_NAMES: Final = (b"python3", b"\x1cNSpid: 1", b"\rUid: 0 0 0 0", b"\xe2\x80\xa8NSpid: 1", b"a:b", b"\x85Gid: 0")
_MOST_NAME: Final = 15
_OTHERS: Final = (
    b"python3\0-c\0import torch\0",
    b"MPSGUARD_PROGRAM=a\0CUDA_VISIBLE_DEVICES=0\0PATH=/bin\0",
    b"0::/system.slice/docker-" + b"0123456789abcdef" * 4 + b".scope\n",
    b"12:memory:/user.slice\n1:name=systemd:/a\n",
)


class Files(msgspec.Struct, frozen=True):
    """The bytes of one of the files, and the process's own name in ``status``."""

    contents: bytes
    name: bytes


class ProcFiles(Surface[Files]):
    """The parsers of what the reading child gives back."""

    name = "/proc of strangers"
    share = 65

    def make(self, chance: Random) -> Files:
        """A file, and a name, changed."""
        name = changed_text(chance, _NAMES[index(chance, len(_NAMES))], _NAMES)[:_MOST_NAME]
        return Files(self._contents(chance), name.replace(b"\\", b"").replace(b"\n", b"\\n"))

    def _contents(self, chance: Random) -> bytes:
        if chance.random() < 0.5:
            lines = [_MAP[index(chance, len(_MAP))] for _ in range(1 + index(chance, 5))]
            return b"".join(changed_text(chance, each, _MAP) if chance.random() < 0.5 else each for each in lines)
        return changed_text(chance, _OTHERS[index(chance, len(_OTHERS))], _OTHERS)

    def feed(self, case: Files) -> None:
        """Read it as each of the files; in ``status`` the kernel's words are what they were."""
        status = procfs.status_of(_STATUS % case.name)
        if (status["NSpid"], status["Uid"][0], status["Gid"][0]) != (["4711", "7"], "65534", "65534"):
            raise BrokenPromiseError(f"{case.name!r} changes what its status says: {status}")
        self._feed(case.contents)

    def _feed(self, case: bytes) -> None:
        procfs.cgroup_paths(case)
        parse_maps(case).around(0x7F48A3700000)
        procfs.environment_of(case)
        shown = (procfs.command_of(case), procfs.cgroup_of(case))
        if not all(text.isprintable() for text in shown):
            raise BrokenPromiseError(f"{shown} would not be printed as it is")
        procfs.container(shown[1])

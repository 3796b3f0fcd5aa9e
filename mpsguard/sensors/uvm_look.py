"""One look at a client's descriptors: which address spaces it holds, and trackers on those that nobody watches yet.

Everything here may wait for the driver or the kernel, and so runs beside the event loop. It changes nothing of the
sensor's: what was found is handed back, and what was opened belongs to who takes it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.linux import foreign_fd
from mpsguard.linux.uvm_tools import NotAVaSpaceError, ToolsDriver, UvmStatusError
from mpsguard.model import ProcessKey
from mpsguard.sensors.uvm_space import WatchedSpace

MAX_SPACES_OF_A_CLIENT: Final = 4
"""CUDA has one; a client that exchanged its program by exec has two for a moment."""


class Order(msgspec.Struct, frozen=True):
    """What a look is to be at, and what was watched when it was asked for."""

    key: ProcessKey
    pidfd: int
    """A copy of its own, to be closed by the look."""
    own: tuple[WatchedSpace, ...]
    """The client's."""
    others: tuple[WatchedSpace, ...]
    max_spaces: int


class Found(msgspec.Struct, frozen=True):
    """What a look has seen."""

    reason: str
    """Why the client has no address space, if it has none."""
    complete: bool = False
    """Whether all of the client's descriptors were seen: what is not in ``held`` is held no more."""
    held: tuple[WatchedSpace, ...] = ()
    """Those of the known ones that the client holds."""
    opened: tuple[WatchedSpace, ...] = ()
    """New ones; nobody reads them yet."""
    ended: bool = False


def look(order: Order, driver: ToolsDriver, device: Path, close_all: Callable[[list[int]], None]) -> Found:
    """Look once. Copies of the client's files go to ``close_all``, for closing the last one may take long."""
    try:
        copies = foreign_fd.copies_of_device(order.pidfd, order.key.pid, device)
    except ProcessLookupError:
        return Found("it ended before its address space was found", ended=True)
    except OSError as error:
        return Found(f"its descriptors cannot be looked at: {error}")
    finally:
        os.close(order.pidfd)
    try:
        return _seen(order, copies, driver, device)
    finally:
        close_all(copies.fds)


def _seen(order: Order, copies: foreign_fd.Copies, driver: ToolsDriver, device: Path) -> Found:
    reason = f"none of its files of {device} is an address space" if copies.fds else f"it has not opened {device}"
    if not copies.complete:
        reason += ", as far as was looked: it has too many files open"
    held: list[WatchedSpace] = []
    unknown: list[int] = []
    try:
        for file in copies.fds:
            known = next((space for space in (*order.own, *order.others) if space.is_of(file)), None)
            if known is None:
                unknown.append(file)
            else:
                held.append(known)
    except OSError as error:
        return Found(str(error), held=tuple(held))
    kept = sum(space in held or not copies.complete for space in order.own)
    room = order.max_spaces - len(order.others) - kept
    opened, trouble = _attached(order.key, unknown, driver, min(room, MAX_SPACES_OF_A_CLIENT - kept))
    if len(opened) >= room and len(unknown) > len(opened):
        trouble = f"{order.max_spaces} address spaces are watched already"
    return Found(trouble or reason, copies.complete, tuple(held), tuple(opened))


def _attached(key: ProcessKey, files: list[int], driver: ToolsDriver, room: int) -> tuple[list[WatchedSpace], str]:
    """New watches over the address spaces among ``files``, ``room`` at most, and the last trouble there was."""
    opened: list[WatchedSpace] = []
    trouble = ""
    for file in files:
        if len(opened) >= room:
            break
        try:
            if not any(space.is_of(file) for space in opened):
                opened.append(WatchedSpace.open(driver, file, key))
        except NotAVaSpaceError:
            continue
        except (UvmStatusError, OSError) as error:
            trouble = str(error)
    return opened, trouble


def absence(driver: ToolsDriver) -> str:
    """Why the driver or the kernel does not let anything be watched; "" if it does."""
    try:
        fd = driver.open()
        try:
            foreign_fd.same_file(fd, fd)
        finally:
            os.close(fd)
    except OSError as error:
        return str(error)
    return ""

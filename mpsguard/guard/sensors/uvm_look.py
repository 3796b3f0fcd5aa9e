"""One look at a client's descriptors: which address spaces it holds, and trackers on those that are not watched yet.

Everything here may wait for the driver or the kernel, and so runs beside the event loop, on several threads at once.
It changes nothing of the sensor's: what was found is handed back, and what was opened belongs to the caller then.
"""

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.guard.sensors.uvm_space import WatchedSpace
from mpsguard.linux.descriptors import foreign_fd
from mpsguard.linux.descriptors.fd_closer import ForeignFdCloser
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.nvidia.uvm_processors import GpuAddresses
from mpsguard.linux.nvidia.uvm_tools import NotAVaSpaceError, ToolsDriver, UvmStatusError
from mpsguard.linux.user_share import UserShare

MAX_SPACES_OF_A_CLIENT: Final = 4
"""CUDA has one; each that a client has had counts until its end, for it is kept until then. As many of its other files
of the device are kept, of which CUDA has one too."""


MAX_TRAPS: Final = 16
"""Files of one user that wait to be closed, having been exchanged under a look. As many are no accident, and closing
them does not come to an end: that user's clients are looked at no more until it does."""


class Order(msgspec.Struct, frozen=True):
    """What a look is to be at, and what was watched when it was asked for."""

    key: ProcessKey
    uid: int
    pidfd: int
    """A copy of its own, to be closed by the look."""
    first: int
    """The descriptor to begin with."""
    own: tuple[WatchedSpace, ...]
    """The client's."""
    others: tuple[WatchedSpace, ...]


class Found(msgspec.Struct, frozen=True):
    """What a look has seen."""

    reason: str
    """Why the client has no address space, if it has none."""
    trouble: str = ""
    """Why something that it has cannot be watched."""
    lost: str = ""
    """The same, if that is not to be mended by another look."""
    held: tuple[WatchedSpace, ...] = ()
    """Those of the known ones that the client holds."""
    opened: tuple[WatchedSpace, ...] = ()
    """New ones; they are not read yet."""
    anchors: tuple[int, ...] = ()
    """Copies of the client's other files of the device, for the caller to close: they keep its memory map, without
    which the driver takes the address space apart as the process ends, whichever process holds that."""
    next_descriptor: int | None = None
    """Where the next look goes on; None if there is nothing beyond what was looked at."""
    exchanged: bool = False
    """It put another file in the place of one of the device while that was looked at."""
    ended: bool = False


class Looker:
    """The driver's side of the sensor. Copies of clients' files go to ``close_all``: closing the last may take long."""

    def __init__(
        self, driver: ToolsDriver, device: Path, addresses: GpuAddresses, close_all: Callable[[list[int]], None]
    ) -> None:
        self._driver = driver
        self._device = device
        self._addresses = addresses
        self._close_all = close_all
        self._strangers = ForeignFdCloser()
        """For what a client may have laid as a trap."""
        self._traps: UserShare[int] = UserShare(sys.maxsize, MAX_TRAPS)
        """Those that wait to be closed."""

    def look(self, order: Order) -> Found:
        """Look once at what a client has open."""
        if not self._traps.has_room(order.uid):
            os.close(order.pidfd)
            why = "its user's clients exchange their files while they are looked at"
            return Found(why, trouble=why)
        try:
            copies = foreign_fd.copies_of_device(order.pidfd, order.key.pid, self._device, order.first)
        except ProcessLookupError:
            return Found("it ended before its address space was found", ended=True)
        except FileNotFoundError:
            return Found(f"there is no {self._device}")
        except OSError as error:
            why = f"its descriptors cannot be looked at: {error}"
            return Found(why, trouble=why)
        finally:
            os.close(order.pidfd)
        if copies.exchanged is not None:
            trap = self._traps.exceed(order.uid)
            self._strangers.close(order.uid, (copies.exchanged,), trap.give_back)
        try:
            found = self._seen(order, copies)
        except BaseException:
            self._close_all(copies.fds)
            raise
        self._close_all([file for file in copies.fds if file not in found.anchors])
        self.read_gpus([*found.opened, *(space for space in found.held if space in order.own)])
        return found

    def read_gpus(self, spaces: Iterable[WatchedSpace]) -> None:
        """Learn which GPUs these address spaces have registered by now."""
        for space in spaces:
            space.read_gpus(self._driver, self._addresses, self._close_all)

    def absence(self) -> str:
        """Why the driver or the kernel does not let anything be watched; "" if it does."""
        try:
            fd = self._driver.open()
            try:
                foreign_fd.same_file(fd, fd)
            finally:
                os.close(fd)
        except OSError as error:
            return str(error)
        return ""

    def _seen(self, order: Order, copies: foreign_fd.Copies) -> Found:
        reason = f"it has not opened {self._device}"
        if copies.fds:
            reason = f"none of its files of {self._device} is an address space"
        if copies.next_descriptor is not None:
            reason += f", as far as descriptor {copies.next_descriptor}"
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
            return Found(str(error), trouble=str(error), held=tuple(held))
        room = max(0, MAX_SPACES_OF_A_CLIENT - len(order.own))
        # One more than may be watched: whether there is one is to be known.
        opened, others, trouble = self._attached(order.key, unknown, room + 1)
        lost = ""
        if len(opened) > room:
            lost = f"it has had more than {MAX_SPACES_OF_A_CLIENT} address spaces"
            opened.pop().close()
        if copies.too_many:
            trouble = f"it has more than {foreign_fd.MAX_COPIES} descriptors of {self._device}"
        return Found(
            reason,
            trouble,
            lost,
            held=tuple(held),
            opened=tuple(opened),
            anchors=tuple(others),
            next_descriptor=copies.next_descriptor,
            exchanged=copies.exchanged is not None,
        )

    def _attached(self, key: ProcessKey, files: list[int], most: int) -> tuple[list[WatchedSpace], list[int], str]:
        """New watches over the address spaces among ``files``, ``most`` at most; what is none; the last trouble."""
        opened: list[WatchedSpace] = []
        others: list[int] = []
        trouble = ""
        for file in files:
            if len(opened) >= most:
                break
            try:
                if not any(space.is_of(file) for space in opened):
                    opened.append(WatchedSpace.open(self._driver, file, key))
            except NotAVaSpaceError:
                others.append(file)
            except (UvmStatusError, OSError) as error:
                trouble = str(error)
        return opened, others, trouble

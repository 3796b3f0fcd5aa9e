"""A simulation of the preload's second driver: a program that goes on after its lane's fault, and tells the guard so.

What the guard sees of it is as with mpsguard/preload/second: a memory file with a claim, connections to ``second`` in
the pipe directory, and the first driver's connections, which stay. Nothing is carried over: there is no content.
"""

import fcntl
import os
import secrets
import struct
import time

import msgspec

from fault_injection.sim.cuda import CudaFailureError, CudaProcess
from fault_injection.sim.directory import pipe_directory
from fault_injection.sim.gpu import CudaError
from mpsguard.preload import second_claim, second_move, zone_table
from mpsguard.preload.second_claim import ClaimPhase, RepetitionState, SecondClaim
from mpsguard.preload.second_move import MoveAnswer, MoveState

_SLOTS = 16
_REPETITION_S = 0.3


class SimulatedSecondDriver:
    """The second driver of this process, and what the process says of it."""

    def __init__(self, mode: str, reason: str, memory_mib: int) -> None:
        """``reason``: why it will not go over; "" if it will."""
        self._mode = mode
        self._reason = reason
        self._memory_mib = memory_mib
        self._sequence = 0
        self._repetition = RepetitionState.NONE
        self._times = 0
        self._table = os.memfd_create(zone_table.NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._table, zone_table.HEADER_BYTES + _SLOTS * zone_table.SLOT.size)
        fcntl.fcntl(self._table, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        head = zone_table.HEADER.pack(
            zone_table.MAGIC,
            zone_table.VERSION,
            zone_table.HEADER_BYTES,
            zone_table.SLOT.size,
            _SLOTS,
            os.getpid(),
            len(zone_table.COUNTERS),
        )
        os.pwrite(self._table, head, 0)
        self._token = 1 + secrets.randbelow(1 << 60)
        self._answer(MoveState())
        self._asked = 0
        """The number of the last request for a move that was answered."""
        self._cuda: CudaProcess | None = None
        if mode == "hot":
            self._cuda = self._connected()
        self._say(ClaimPhase.WAITING, reason)

    def repeat_alone(self, *, faults: bool) -> None:
        """Say that work in flight is done again outside of MPS, and what becomes of it; after a fault it is refused."""
        self._repetition = RepetitionState.NONE
        self._say(ClaimPhase.GOING_OVER, "")
        self._repetition = RepetitionState.UNDER_WAY
        self._say(ClaimPhase.GOING_OVER, "")
        time.sleep(_REPETITION_S)
        self._repetition = RepetitionState.FAULTED if faults else RepetitionState.COMPLETED
        self._reason = "repeated_fault" if faults else self._reason
        self._say(ClaimPhase.GOING_OVER, "")

    def take_over(self) -> CudaProcess:
        """Return the driver that goes on; CudaFailureError where there is none, for the program."""
        if not self._reason:
            self._say(ClaimPhase.GOING_OVER, "")
            try:
                cuda = self._cuda or self._connected()
            except CudaFailureError:
                self._reason = "second_failed"
            else:
                self._go_on(ClaimPhase.WENT_OVER)
                return cuda
        self._say(ClaimPhase.REFUSED, self._reason)
        raise CudaFailureError(CudaError.LAUNCH_FAILED)

    def move_if_asked(self) -> CudaProcess | None:
        """Return the driver that goes on if the guard asks for a move; None if it does not, or there is none."""
        number, share = self._asked_now()
        if number in (0, self._asked):
            return None
        self._asked = number
        begin = time.monotonic()
        try:
            # One that was made for a fault has the share of the program.
            cuda = self._cuda if self._cuda is not None and share == 0 else self._connected()
        except CudaFailureError:
            self._answer(MoveState(number, MoveAnswer.FAILED, reason="second_failed"))
            return None
        self._go_on(ClaimPhase.MOVED)
        self._answer(MoveState(number, MoveAnswer.MOVED, time.monotonic() - begin, 0.001))
        return cuda

    def _go_on(self, phase: ClaimPhase) -> None:
        """Say that another driver is at hand: the next one is made at a fault."""
        self._cuda = None
        self._times += 1
        self._say(phase, self._reason)

    def _asked_now(self) -> tuple[int, int]:
        """Return the number of the guard's request, and its share in hundredths; zeros for none."""
        own = pipe_directory()
        places = (own / "second" / "moves", own.parent / "second" / "moves")
        page = next((place.read_bytes() for place in places if place.exists()), b"")
        slots = struct.iter_unpack("<QIHH", page[: len(page) // 16 * 16])
        return next(((number, share) for token, number, share, _ in slots if token == self._token), (0, 0))

    def _answer(self, state: MoveState) -> None:
        answer = msgspec.structs.replace(state, token=self._token)
        os.pwrite(self._table, second_move.encode(answer), second_move.AT)

    def _connected(self) -> CudaProcess:
        own = pipe_directory()
        # As the preload looks for it (second/lane.c): in a class's directory there is none.
        places = (own / "second", own.parent / "second")
        cuda = CudaProcess(next((place for place in places if (place / "control").exists()), own))
        cuda.init()
        if not cuda.mps:
            raise CudaFailureError(CudaError.MPS_RPC_FAILURE)
        cuda.create_context(self._memory_mib)
        return cuda

    def _say(self, phase: ClaimPhase, reason: str) -> None:
        self._sequence += 2
        claim = SecondClaim(phase, self._mode, reason, self._repetition, self._times)
        os.pwrite(self._table, second_claim.encode(claim, self._sequence), second_claim.AT)

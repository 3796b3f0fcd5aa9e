"""The simulated GPU as one MPS server sees it: contexts, kernels in flight, fatal faults and their aftermath.

Order of events and log lines as seen on driver 580.159.04: a fatal fault stops all work, the server notices (FAULT, new
clients refused with 807), all clients get an error, and after the last old context the server context is created anew.
"""

import heapq
import itertools
import os
import time
from collections.abc import Callable, Mapping

from fault_injection.sim import gpu
from fault_injection.sim.address_space import is_gone
from fault_injection.sim.gpu import CudaError, Fault
from fault_injection.sim.wire import Channel

_TERMINATION_S = 0.008
CRASH = "null"
"""A process that dies with a kernel in flight has the effects of this fault."""


def _faults() -> Mapping[str, Fault]:
    """What a kernel can run into, by name; most servers never see any."""
    from fault_injection.sim.gpu_faults import FAULTS  # noqa: PLC0415 - reads the table of faults

    return FAULTS


class Context:
    """One CUDA context of a client; context 0 is the one `cuInit` opens and runs nothing."""

    def __init__(self, channel: Channel, pid: int, number: int, serial: int) -> None:
        self.channel = channel
        self.pid = pid
        self.number = number
        self.serial = serial
        self.memory: list[int] = []
        self.in_flight = False
        self.failed = CudaError.SUCCESS
        self.space = -1
        """The server's side of its address space (`address_space`); -1 if it has offered none."""
        self.left_running = False
        """Whether its client has ended, and its kernel runs on in an address space that another process keeps."""

    def __str__(self) -> str:
        return f"{{PID: {self.pid}, Context ID: {self.number}}}"

    def complete(self, result: CudaError) -> None:
        """Tell the client how its kernel ended."""
        if self.in_flight:
            self.in_flight = False
            self.channel.send_int(result)


class Device:
    """Contexts and faults of one server on device 0."""

    def __init__(self, say: Callable[[str], None], spares: Callable[[], bool], notices: Callable[[], float]) -> None:
        """Create it.

        Args:
            say: writes a line into the server's log.
            spares: tells whether work that a client leaves behind does no harm.
            notices: returns seconds that the server takes at least to notice a fault.
        """
        self._notices = notices
        self._spares = spares
        self.contexts: list[Context] = []
        self.fault = False
        self._say = say
        self._has_server_context = False
        self._stopped = False
        self._era = 0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = itertools.count()

    def prepare(self) -> None:
        """Make the server context if there is none."""
        if not self._has_server_context:
            self._say(f"Creating server context on device 0 ({gpu.NAME})")
            self._has_server_context = True

    def unavailable(self) -> bool:
        """Return whether the GPU has faulted, and the server has yet to notice: no context can be made."""
        return self._stopped and not self.fault

    def active(self) -> list[Context]:
        """The contexts that can run kernels."""
        return [context for context in self.contexts if context.number > 0]

    def launch(self, context: Context, seconds: float, fault: str) -> None:
        """Start a kernel; the client hears when it is done, or what became of it."""
        context.in_flight = True
        if context.failed:
            context.complete(context.failed)
        elif fault and fault in _faults():
            self.fail(_faults()[fault], context)
        else:
            self.after(seconds, lambda: self._done(context))

    def fail(self, fault: Fault, culprit: Context) -> None:
        """A fault happens now."""
        if fault.contained:
            culprit.failed = fault.culprit
            culprit.complete(fault.culprit)
        elif not self._stopped:
            self._stopped = True
            era = self._era
            self.after(max(fault.noticed_s, self._notices()), lambda: self._notice(fault, culprit))
            self.after(fault.delivered_s, lambda: self._deliver(fault, culprit, era))

    def terminate(self, pid: int) -> CudaError:
        """Take one client's work off the GPU."""
        found = [context for context in self.active() if context.pid == pid]
        if not found:
            self._say(f"Client termination request failed: There is no active client context found for process {pid}.")
            self._say("Client termination failed with invalid device context.")
            return CudaError.INVALID_CONTEXT
        for context in found:
            # The answer 0 means that the work is off the GPU: a client that ends before it gets its error does no harm.
            context.failed = context.failed or CudaError.MPS_CLIENT_TERMINATED
            self.after(_TERMINATION_S, lambda context=context: self._end(context))  # type: ignore[misc]
        return CudaError.SUCCESS

    def leave(self, context: Context) -> None:
        """A client hung up, in order or by dying."""
        context.channel.close()
        self.contexts.remove(context)
        for fd in context.memory:
            os.close(fd)
        self._say(f"Server failed to recevie command with status 806, assuming client {context} exit")
        if context.number == 0:
            self._say(f"Client process {context.pid} disconnected")
            return
        left = len(self.active())
        reset = "Worker is in reset. " if self.fault and left else ""
        self._say(f"Client {context} exiting. {reset}Number of active client contexts is {left}.")
        if context.in_flight and not context.failed:
            context.in_flight = False  # no client is left to get its result
            if context.space >= 0 and not is_gone(context.space):
                context.left_running = True
            elif not self._spares():
                self.fail(_faults()[CRASH], context)
        if context.space >= 0 and not context.left_running:
            os.close(context.space)
        self._renew()

    def space_gone(self, context: Context) -> None:
        """The address space of an ended client is gone; a kernel that still runs there faults."""
        os.close(context.space)
        if context.left_running and not self._spares():
            self.fail(_faults()[CRASH], context)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._ticket), act))

    def run_timers(self) -> float | None:
        """Do what is due; how long until the next."""
        while self._timers:
            due, _ticket, act = self._timers[0]
            if (left := due - time.monotonic()) > 0:
                return left
            heapq.heappop(self._timers)
            act()
        return None

    def _done(self, context: Context) -> None:
        context.left_running = False
        if not self._stopped or context.failed:
            context.complete(context.failed)

    def _end(self, context: Context) -> None:
        if context in self.contexts:
            context.complete(context.failed)

    def _notice(self, fault: Fault, culprit: Context) -> None:
        self.fault = True
        self._say("Server is handling a fatal GPU error.")
        hit = self.active()
        if fault.names_client:
            # Any client, as it seems: on the H200 it was the culprit in 3 of 27 faults.
            named = next(iter(hit), culprit)
            self._say(f"Client {{PID: {named.pid}, Context: {named.number}}} encountered a fatal GPU error.")
        for context in hit:
            self._say(f"Client {context} on device 0 to be torn down")
        for context in hit:
            self._say(f"All clients belonging to error trigging process {context.pid} will be torn down")
            self._say(f"Client {context} on the error-trigging process {context.pid} to be torn down")
        self._say("The following devices will be reset:")
        self._say("0")
        self._say("The following client process have a sticky error set:")
        for pid in dict.fromkeys(context.pid for context in hit):
            self._say(str(pid))
        self._renew()

    def _deliver(self, fault: Fault, culprit: Context, era: int) -> None:
        if era != self._era:
            return
        for context in self.active():
            if context is culprit and not fault.culprit:
                context.complete(CudaError.SUCCESS)
            context.failed = context.failed or fault.others
            context.complete(context.failed)

    def _renew(self) -> None:
        if self.fault and not self.active():
            self._say(f"Destroy server context on device 0 ({gpu.NAME})")
            self.fault = self._stopped = self._has_server_context = False
            self._era += 1

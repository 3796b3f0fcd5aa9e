"""Entry point of the two programs in `bin/`: command line, daemon in the background, order of start and quit.

Each role imports what it needs: a run of the tests starts thousands of these processes.
"""

import os
import resource
import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fault_injection.sim.directory import AlreadyRunningError, PipeDirectory, log_directory, pipe_directory

_VERSION = "CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000 (SIMULATION, no GPU)"
_BINARY_VERSION = 13000
_HELP = f"""{_VERSION}
A stand-in for nvidia-cuda-mps-control with its socket contract, for tests and demonstrations.

nvidia-cuda-mps-control [options] [command]
  -h, --help              this text
  -v, --version           version
  -d, --daemon            daemon in the background
  -f, --foreground        daemon in the foreground
  -M, --multiuser-server  one server, run by root, for the clients of all users
without a daemon option: commands from the arguments, or from stdin until its end
"""
_FLAGS = {
    "-h": "help", "--help": "help", "-v": "version", "--version": "version", "-d": "daemon", "--daemon": "daemon",
    "-f": "foreground", "--foreground": "foreground", "-M": "multiuser", "--multiuser-server": "multiuser",
    "-multiuser-server": "multiuser",
}  # fmt: skip


def control(arguments: list[str]) -> int:
    """Run `nvidia-cuda-mps-control`."""
    flags = {_FLAGS[argument] for argument in arguments if argument in _FLAGS}
    words = [argument for argument in arguments if argument not in _FLAGS]
    if words and words[0].startswith("-"):
        print(f"Unrecognized option {words[0].lstrip('-')[:1]}", file=sys.stderr)
        return 1
    if "help" in flags or "version" in flags:
        print(_HELP if "help" in flags else _VERSION)
        return 0
    if "multiuser" in flags and os.geteuid() != 0:
        print("Only root user may enable -multiuser-server!", file=sys.stderr)
        return 1
    if "foreground" in flags:
        return _serve(multiuser="multiuser" in flags, ready=None)
    if "daemon" in flags:
        return _daemonize(multiuser="multiuser" in flags)
    from fault_injection.sim import ui  # noqa: PLC0415

    given = [os.fsencode(" ".join(words)) + b"\n"] if words else ui.lines(sys.stdin.buffer)
    return ui.run(pipe_directory(), given)


def _daemonize(*, multiuser: bool) -> int:
    """Fork twice; the parent returns 0 only when the daemon listens."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        listening = os.read(reader, 1)
        os.waitpid(child, 0)
        return 0 if listening else 1
    os.close(reader)
    os.setsid()
    if os.fork():
        os._exit(0)
    return _serve(multiuser=multiuser, ready=writer)


def _serve(*, multiuser: bool, ready: int | None) -> int:
    from fault_injection.sim.control import ControlDaemon  # noqa: PLC0415
    from fault_injection.sim.recorder import Log, Origin, Recorder  # noqa: PLC0415

    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        directory = PipeDirectory(pipe_directory())
    except AlreadyRunningError:
        print("An instance of this daemon is already running", file=sys.stderr)
        return 1
    except OSError:
        print(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={pipe_directory()}", file=sys.stderr)
        return 1
    recorder = Recorder(directory.fifo, log_directory())
    log = Log(directory.fifo)
    log.say(Origin.CONTROL, f"Starting control daemon using socket {directory.control}")
    log.say(
        Origin.CONTROL,
        f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={directory.root}",
    )
    daemon = ControlDaemon(directory, log, multiuser=multiuser)
    if daemon.driver.pid_file:
        directory.write_pid()
    if daemon.driver.tells_version:
        log.say(Origin.CONTROL, f"CUDA MPS Control binary version: {_BINARY_VERSION}")
    if ready is not None:
        _detach()
        os.write(ready, b"\0")
        os.close(ready)
    quitter = daemon.run()
    directory.remove_pid()
    quitter.finish(0)
    log.say(Origin.CONTROL, "Exit with status 0")
    log.stop()
    recorder.join()
    directory.remove_fifo()
    return 0


def _detach() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def main(name: str, arguments: list[str]) -> int:
    """Run one of the two programs."""
    Path("/proc/self/comm").write_text(name)
    if name == "nvidia-cuda-mps-server":
        from fault_injection.sim import server  # noqa: PLC0415

        return server.main(pipe_directory())
    return control(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

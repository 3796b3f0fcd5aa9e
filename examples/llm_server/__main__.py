"""A token server that another process continues after a failure.

    mpsguard run --standby 1 --listen 127.0.0.1:8000 -- python -m examples.llm_server --model gpt2
    curl -N localhost:8000/generate -d '{"prompt": "once", "max_tokens": 32, "seed": 7}'

It needs a vault (MPSGUARD_VAULT); `mpsguard run` provides it together with the supervisor and the listening socket.

With --requests there is no network: the process answers a fixed list of requests and logs (--events) what it does and
when, for measurements. --mode selects what a process has prepared before a failover; `vault` is the one for real use.

Exit codes: 0 all requests were answered, or stopped by SIGTERM; 2 wrong arguments; 3 another process has taken over; 4
the work failed (one line says why), and a standby is to take over.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence

# Before PyTorch is loaded: sums must be the same in every process.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# One stream needs one channel of the GPU; the more there are, the later the driver reports an SM fault.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")

import torch

from examples.events import Events
from examples.llm_server import headless
from examples.llm_server import state as forward
from examples.llm_server.engine import Engine, Settings
from examples.llm_server.memory import Mode
from examples.llm_server.server import Server
from examples.llm_server.shapes import SHAPES
from mpsguard import client
from mpsguard.vault.client.kept_connections import KeptConnections, SupersededError

FENCED, FAILED = 3, 4


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; exit with 2 and one line if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.llm_server", description="A language model's token server"
    )
    parser.add_argument("--model", choices=sorted(SHAPES), default="gpt2")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--session", default="llm", help="name of the session in the vault")
    parser.add_argument("--slots", type=positive, default=4, help="requests that are computed at a time")
    parser.add_argument("--seed", type=natural, default=0, help="of the weights")
    parser.add_argument("--mode", choices=[str(mode) for mode in Mode], default=str(Mode.VAULT))
    parser.add_argument("--keep", type=float, default=300.0, help="seconds that the session outlives its last process")
    parser.add_argument("--events", help="file or descriptor for JSON lines that say what happens, and when")
    parser.add_argument("--port", type=natural, help="listen on 127.0.0.1, if no socket was handed over")
    parser.add_argument("--requests", type=positive, help="answer so many requests of a fixed list, without a network")
    parser.add_argument("--prompt", type=positive, default=32, help="tokens of each of them")
    parser.add_argument("--tokens", type=positive, default=128, help="tokens wanted of each of them")
    options = parser.parse_args(words)
    length = SHAPES[options.model].length
    if options.requests is not None and options.prompt + options.tokens > length:
        parser.error(f"--prompt and --tokens: {length} together at most for {options.model}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no GPU")
    return options


def positive(word: str) -> int:
    """Parse an integer of at least 1."""
    if (number := natural(word)) < 1:
        raise argparse.ArgumentTypeError(f"{word}: at least 1")
    return number


def natural(word: str) -> int:
    """Parse an integer of at least 0."""
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"{word!r}: a number from 0 on")
    return int(word)


def listener(port: int | None) -> socket.socket:
    """Return the first socket passed by systemd's protocol, or a new one; raise SystemExit if there is neither."""
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and int(os.environ.get("LISTEN_FDS", "0")) > 0:
        return socket.socket(fileno=3)
    if port is None:
        raise SystemExit("nothing to listen on: neither a socket was handed over nor --port given")
    return socket.create_server(("127.0.0.1", port))


def work(options: argparse.Namespace, session: client.Session, events: Events) -> None:
    """Prepare, wait to become the writer, and serve."""
    shape = SHAPES[options.model]
    settings = Settings(shape, options.slots, options.seed, torch.device(options.device), Mode(options.mode))
    vocabulary = shape.config().vocab_size
    connections = KeptConnections.from_environment(io_fence=True)
    engine = Engine(session, settings, events)
    try:
        engine.prepare()
        session.ready()
        events.write("promoted", generation=session.generation)
        engine.resume()
        if options.requests is not None:
            headless.run(
                engine,
                events,
                requests=options.requests,
                slots=options.slots,
                prompt=options.prompt,
                tokens=options.tokens,
                vocabulary=vocabulary,
            )
        else:
            serve(options, engine, connections, events, vocabulary)
    finally:
        engine.close()


def serve(
    options: argparse.Namespace, engine: Engine, connections: KeptConnections, events: Events, vocabulary: int
) -> None:
    """Serve over HTTP until SIGTERM."""
    length = SHAPES[options.model].length
    with listener(options.port) as sock:
        server = Server(engine, sock, connections, slots=options.slots, vocabulary=vocabulary, length=length)
        events.write("connected")
        signal.signal(signal.SIGTERM, lambda *_: server.stop())
        try:
            server.run()
        finally:
            server.close()


def main(words: Sequence[str] | None = None) -> int:
    """Run the server and return the exit code."""
    options = arguments(words)
    room = forward.capacity(options.slots, SHAPES[options.model].length)
    with Events(options.events) as events:
        try:
            with client.join(options.session, capacity=room, keep=options.keep) as session:
                work(options, session, events)
        except (client.StaleGenerationError, SupersededError) as error:
            print(f"llm_server: another process has taken over: {error}", file=sys.stderr, flush=True)
            return FENCED
        except Exception as error:
            events.write("failed", error=f"{type(error).__name__}: {error}".partition("\n")[0])
            print(f"llm_server: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return FAILED
    return 0


if __name__ == "__main__":
    # Not sys.exit: after a GPU fault, the interpreter's finalization waits for work that never ends.
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

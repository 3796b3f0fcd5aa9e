"""A token server whose work outlives its process.

    mpsguard run --standby 1 --listen 127.0.0.1:8000 -- python -m examples.llm_server --model gpt2
    curl -N localhost:8000/generate -d '{"prompt": "once", "max_tokens": 32, "seed": 7}'

Without a supervisor and a vault's socket in the environment (MPSGUARD_VAULT) it can only be started with both by hand.

With --requests there is no network: the process answers a fixed list of requests and writes down (--events) what it
does and when, to be measured. --mode says what a process has when its turn comes; `vault` is the one that is for use.

Exit codes: 0 all was answered, or stopped by SIGTERM; 2 wrong arguments; 3 another process goes on in our place; 4 the
work failed (one line says why), and is to be taken over.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence

# Before PyTorch is loaded: sums are to be the same in every process.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# One stream needs one channel of the GPU; the more there are, the later the driver tells of an SM fault.
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
from mpsguard.client.kept_connections import KeptConnections, SupersededError

FENCED, FAILED = 3, 4


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for; exits with 2 and a line if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.llm_server", description="A language model's token server"
    )
    parser.add_argument("--model", choices=sorted(SHAPES), default="gpt2")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--session", default="llm", help="name of the session in the vault")
    parser.add_argument("--slots", type=positive, default=4, help="requests that are worked on at a time")
    parser.add_argument("--seed", type=natural, default=0, help="of the weights")
    parser.add_argument("--mode", choices=[str(mode) for mode in Mode], default=str(Mode.VAULT))
    parser.add_argument("--keep", type=float, default=300.0, help="seconds that the session outlives its last process")
    parser.add_argument("--events", help="file or descriptor for JSON lines that say what happens, and when")
    parser.add_argument("--port", type=natural, help="listen on 127.0.0.1, if no socket was handed over")
    parser.add_argument("--requests", type=positive, help="answer so many requests of a fixed list, without a network")
    parser.add_argument("--prompt", type=positive, default=32, help="tokens of each of them")
    parser.add_argument("--tokens", type=positive, default=128, help="tokens wanted of each of them")
    asked = parser.parse_args(words)
    length = SHAPES[asked.model].length
    if asked.requests is not None and asked.prompt + asked.tokens > length:
        parser.error(f"--prompt and --tokens: {length} together at most for {asked.model}")
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no GPU")
    return asked


def positive(word: str) -> int:
    """An integer from 1 on."""
    if (number := natural(word)) < 1:
        raise argparse.ArgumentTypeError(f"{word}: at least 1")
    return number


def natural(word: str) -> int:
    """An integer from 0 on."""
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"{word!r}: a number from 0 on")
    return int(word)


def listener(port: int | None) -> socket.socket:
    """The first socket handed over by systemd's protocol, or one of our own. SystemExit if there is neither."""
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and int(os.environ.get("LISTEN_FDS", "0")) > 0:
        return socket.socket(fileno=3)
    if port is None:
        raise SystemExit("nothing to listen on: neither a socket was handed over nor --port given")
    return socket.create_server(("127.0.0.1", port))


def work(asked: argparse.Namespace, session: client.Session, events: Events) -> None:
    """Prepare, wait for our turn, and serve."""
    shape = SHAPES[asked.model]
    settings = Settings(shape, asked.slots, asked.seed, torch.device(asked.device), Mode(asked.mode))
    vocabulary = shape.config().vocab_size
    connections = KeptConnections.from_environment(io_fence=True)
    engine = Engine(session, settings, events)
    try:
        engine.prepare()
        session.ready()
        events.write("promoted", generation=session.generation)
        engine.take_over()
        if asked.requests is not None:
            headless.run(
                engine,
                events,
                requests=asked.requests,
                slots=asked.slots,
                prompt=asked.prompt,
                tokens=asked.tokens,
                vocabulary=vocabulary,
            )
        else:
            serve(asked, engine, connections, events, vocabulary)
    finally:
        engine.close()


def serve(
    asked: argparse.Namespace, engine: Engine, connections: KeptConnections, events: Events, vocabulary: int
) -> None:
    """Over HTTP, until SIGTERM."""
    length = SHAPES[asked.model].length
    with listener(asked.port) as heard:
        server = Server(engine, heard, connections, slots=asked.slots, vocabulary=vocabulary, length=length)
        events.write("connected")
        signal.signal(signal.SIGTERM, lambda *_: server.stop())
        try:
            server.run()
        finally:
            server.close()


def main(words: Sequence[str] | None = None) -> int:
    """Run; the exit code."""
    asked = arguments(words)
    room = forward.capacity(asked.slots, SHAPES[asked.model].length)
    with Events(asked.events) as events:
        try:
            with client.join(asked.session, capacity=room, keep=asked.keep) as session:
                work(asked, session, events)
        except (client.StaleGenerationError, SupersededError) as error:
            print(f"llm_server: another process goes on: {error}", file=sys.stderr, flush=True)
            return FENCED
        except Exception as error:
            events.write("failed", error=f"{type(error).__name__}: {error}".partition("\n")[0])
            print(f"llm_server: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return FAILED
    return 0


if __name__ == "__main__":
    # Not sys.exit: after a fault on the GPU, the end of the interpreter waits for work that never ends.
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

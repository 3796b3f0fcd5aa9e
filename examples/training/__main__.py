"""A training loop that resumes at the last published step, in a standby process that was ready in advance.

    mpsguard run --standby 1 -- python -m examples.training --steps 10000 --events losses.jsonl

Its losses are bit for bit those of a run without a failure. An event ``step`` with a step's number and loss follows
each publication; after a failover the last one is written again, since the predecessor may have died before it did so.

Exit codes: 0 all steps are done; 2 wrong arguments; 3 another process has taken over; 4 the work failed.
"""

import argparse
import os
import sys
from collections.abc import Sequence

# Before PyTorch is loaded: sums must be the same in every process.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# One stream needs one channel of the GPU; the more there are, the later the driver reports an SM fault.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")

import torch

from examples.events import Events
from examples.training import progress as forward
from examples.training.progress import COPIES, Progress
from examples.training.replica import Replica, specs
from mpsguard import client
from mpsguard.vault.client.torch_regions import StateDict, create_state_dict, open_state_dict

REGION = "training"
FENCED, FAILED = 3, 4


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; exit with 2 and one line if it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m examples.training", description="A training loop that resumes")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--session", default="training", help="name of the session in the vault")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first weights")
    parser.add_argument("--keep", type=float, default=300.0, help="seconds that the session outlives its last process")
    parser.add_argument("--events", help="file or descriptor for JSON lines: steps and their losses")
    options = parser.parse_args(words)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no GPU")
    return options


def open_region(session: client.Session, device: torch.device) -> StateDict:
    """Open the three copies; a writer creates them anew as long as nothing was published."""
    if session.role is not client.LeaseRole.WRITER or session.state() is not None:
        return open_state_dict(session, REGION, device, writable=True)
    for name in list(session.names()):
        session.release(name)
    wanted = {f"{copy}/{name}": spec for copy in range(COPIES) for name, spec in specs().items()}
    return create_state_dict(session, REGION, wanted, device)


def train(options: argparse.Namespace, session: client.Session, events: Events) -> None:
    """Prepare, wait to become the writer, and continue from the last whole step."""
    device = torch.device(options.device)
    torch.use_deterministic_algorithms(True)
    state = open_region(session, device)
    parts = [{n[2:]: t for n, t in state.tensors.items() if n.startswith(f"{copy}/")} for copy in range(COPIES)]
    replicas = [Replica(part) for part in parts]
    warm(parts[0], device)
    events.write("prepared", role=str(session.role))
    session.ready()
    found = session.state()
    if found is None:
        replicas[0].fill(options.seed)
        now = Progress(0, copy=0, target=1)
    else:
        now = forward.after_failover(forward.decode(found))
    session.publish(forward.encode(now))
    events.write("promoted", step=now.step, loss=now.loss)
    while now.step < options.steps:
        loss = replicas[now.target].step(replicas[now.copy], now.step, device)
        now = forward.advanced(now, loss)
        session.publish(forward.encode(now))
        events.write("step", step=now.step, loss=loss)


def warm(part: dict[str, torch.Tensor], device: torch.device) -> None:
    """Compute a step on private memory, so that all libraries are loaded."""
    before, after = (Replica({name: torch.zeros_like(tensor) for name, tensor in part.items()}) for _ in range(2))
    after.step(before, 0, device)


def main(words: Sequence[str] | None = None) -> int:
    """Run the training and return the exit code."""
    options = arguments(words)
    with Events(options.events) as events:
        try:
            with client.join(options.session, keep=options.keep) as session:
                train(options, session, events)
        except client.StaleGenerationError as error:
            print(f"training: another process has taken over: {error}", file=sys.stderr, flush=True)
            return FENCED
        except Exception as error:
            print(f"training: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return FAILED
    return 0


if __name__ == "__main__":
    # Not sys.exit: after a GPU fault, the interpreter's finalization waits for work that never ends.
    os._exit(main())

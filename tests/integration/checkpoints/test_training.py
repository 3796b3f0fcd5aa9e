"""A training loop of PyTorch on the CPU, with its state in a region: two lines make checkpoints of it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from mpsguard.images import checkpoints
from mpsguard.images.membership import join
from mpsguard.images.store.store import ImageStore
from tests.harness.waiting import PATIENCE
from tests.integration.checkpoints.world import World
from tests.late import Late

if TYPE_CHECKING:
    from mpsguard.vault.client.torch_regions import StateDict

torch = Late("torch")
torch_regions = Late("mpsguard.vault.client.torch_regions", "torch", "numpy")

WIDTH = 256


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums must be the same in both runs, and threads that spin cost other tests their time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def specs() -> dict[str, Any]:
    wanted = {}
    for name, tensor in network().state_dict().items():
        like = torch_regions.Spec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        wanted[name] = like
        if tensor.is_floating_point() and "running" not in name:
            wanted |= {
                f"exp_avg/{name}": like,
                f"exp_avg_sq/{name}": like,
                f"step/{name}": torch_regions.Spec("float32", ()),
            }
    return wanted


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH),
        torch.nn.BatchNorm1d(4 * WIDTH),
        torch.nn.GELU(),
        torch.nn.Linear(4 * WIDTH, WIDTH),
    )


class Training:
    """A model, its optimizer and its buffers, all in one region."""

    def __init__(self, state: "StateDict", *, first: bool) -> None:
        self.state = state
        with torch.device("meta"):
            self.model = network()
        names = list(self.model.state_dict())
        if first:
            for name, value in network().state_dict().items():
                state.tensors[name].copy_(value)
        self.model.load_state_dict({name: state.tensors[name] for name in names}, assign=True)
        self.model.requires_grad_(requires_grad=True)
        parameters = dict(self.model.named_parameters())
        self.optimizer = torch.optim.AdamW(parameters.values(), lr=1e-3, foreach=False)
        for name, parameter in parameters.items():
            self.optimizer.state[parameter] = {
                part: state.tensors[f"{part}/{name}"] for part in ("step", "exp_avg", "exp_avg_sq")
            }

    def step(self, number: int) -> float:
        inputs = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(number))
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(inputs), torch.sin(inputs))
        loss.backward()
        self.optimizer.step()
        return float(loss.item())


def test_a_resumed_run_computes_the_same_losses(world: World) -> None:
    losses: dict[int, float] = {}
    with world.session() as session, torch_regions.create_state_dict(session, "training", specs(), "cpu") as state:
        training = Training(state, first=True)
        writes = torch_regions.announce_writes([state.memory], optimizer=training.optimizer, model=training.model)
        session.publish(b"0")
        taken = {}
        for step in range(1, 19):
            losses[step] = training.step(step)
            session.publish(b"%d" % step)
            if step % 6 == 0:
                name = f"step-{step}"
                taken[step] = checkpoints.of(session).take(name), state.memory.view().read()
            if step % 6 == 4 and step - 4 in taken:
                checkpoint, memory = taken[step - 4]
                assert checkpoint.wait(PATIENCE).unannounced == 0
                assert world.image(checkpoint.image)["training"] == memory
        writes.remove()
        taken[18][0].wait(PATIENCE)
        with ImageStore(world.store) as store, store.open("step-18") as image:
            # As `mpsguard-ctl image export` takes them.
            tensors = {tensor.name: tensor.shape for tensor in image.manifest.tensors}
            assert tensors == {name: spec.shape for name, spec in specs().items()}
        del training
    with (
        join("resumed", socket=world.vault.socket, image="step-12", store=world.store) as session,
        torch_regions.open_state_dict(session, "training", "cpu", writable=True) as state,
    ):
        assert session.state() == b"12"
        resumed = Training(state, first=False)
        assert {step: resumed.step(step) for step in range(13, 19)} == {step: losses[step] for step in range(13, 19)}
        del resumed


def test_without_the_hooks_writes_are_found(world: World) -> None:
    with world.session() as session, torch_regions.create_state_dict(session, "training", specs(), "cpu") as state:
        training = Training(state, first=True)
        session.publish(b"0")
        checkpoints.of(session).take("one").wait(PATIENCE)
        training.step(1)
        session.publish(b"1")
        assert checkpoints.of(session).take("two").wait(PATIENCE).unannounced > 0
        del training

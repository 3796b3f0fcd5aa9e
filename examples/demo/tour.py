"""Plays the scenes in a private directory, and cleans up after them."""

import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeVar

from examples.demo.fact import Cell, not_observed
from examples.demo.machine import Machine
from examples.demo.screen import Screen
from examples.demo.stage import Scene, Stage
from tests.bench.core.bench import Bench
from tests.bench.core.errors import SuiteError
from tests.bench.core.stop import stoppable
from tests.harness.leftovers import end_all

P = TypeVar("P")

Row = tuple[str, Cell, Cell]
"""A scene's name, and the observations of stock MPS and of mpsguard."""


def play(scenes: Sequence[Scene], machine: Machine, screen: Screen, deadline: float) -> list[Row]:
    """Play all scenes and return the rows of the summary.

    Raises:
        StopRunError: after `deadline` seconds, on Ctrl-C, on SIGTERM, or when the terminal hangs up.
    """
    # A short path: a socket's path has at most 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="mpsguard-demo-"))
    try:
        with stoppable(deadline), _hangup_is_sigterm():
            programs = machine.build(root)
            bench = Bench(root, programs, quick=True, say=lambda _: None)
            stage = Stage(bench, programs, screen)
            return [row for scene in scenes if (row := _play(scene, stage))]
    finally:
        with _undisturbed():
            end_all(root)
            shutil.rmtree(root, ignore_errors=True)


def _play(scene: Scene, stage: Stage) -> Row | None:
    """Play a scene and return its row; None if it is left out here."""
    if scene.only_simulated and not stage.programs.simulated:
        stage.screen.left_out(scene.name, scene.only_simulated)
        return None
    stage.screen.scene(scene.name, scene.announcement)
    stock = _side(scene.stock, stage.stock) if scene.stock else ()
    guarded = _side(scene.guarded, partial(stage.guarded, scene.options))
    stage.screen.outcome(stock, guarded)
    return scene.name, stock, guarded


def _side(play_on: Callable[[P], Cell], place: Callable[[], AbstractContextManager[P]]) -> Cell:
    try:
        with place() as made:
            return play_on(made)
    except (SuiteError, OSError, ValueError) as error:  # TimeoutError is an OSError
        return [not_observed(str(error))]


@contextmanager
def _hangup_is_sigterm() -> Iterator[None]:
    """Treat SIGHUP like SIGTERM."""

    def forward(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGHUP, forward)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore further signals during the clean-up, which has its own deadlines."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, signal.SIG_IGN) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)

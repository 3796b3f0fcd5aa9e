"""What the loaded nvidia-uvm is set to, as its parameters say."""

from pathlib import Path

import pytest

from mpsguard.guard.sensors.kmod import contains, mode


def with_parameters(module: Path, **parameters: str) -> Path:
    (module / "parameters").mkdir(parents=True)
    for name, value in parameters.items():
        (module / "parameters" / name).write_text(f"{value}\n")
    return module


@pytest.mark.parametrize(
    ("policy", "said"),
    [("0", "off"), ("1", "on where a TSG is shared"), ("2", "on always"), ("9", "'9', which is unknown")],
)
def test_the_mode_is_reported(tmp_path: Path, policy: str, said: str) -> None:
    module = with_parameters(
        tmp_path / "m",
        uvm_fault_isolation=policy,
        uvm_fault_isolation_version="1.0",
        uvm_fault_isolation_agents="1",
    )
    state = mode(module)
    assert state.present
    assert "1.0" in state.detail
    assert said in state.detail


@pytest.mark.parametrize(
    ("agents", "without", "kept"), [("0", "0", False), ("2", "0", True), ("0", "1", True), (None, None, False)]
)
def test_without_an_agent_nothing_is_contained(
    tmp_path: Path, agents: str | None, without: str | None, kept: bool
) -> None:
    named = {"uvm_fault_isolation_agents": agents, "uvm_fault_isolation_without_agent": without}
    module = with_parameters(
        tmp_path / "m",
        uvm_fault_isolation="1",
        uvm_fault_isolation_version="1.0",
        **{name: value for name, value in named.items() if value is not None},
    )
    assert contains(module) is kept
    assert ("not now" in mode(module).detail) is not kept


def test_the_stock_module_contains_nothing(tmp_path: Path) -> None:
    state = mode(with_parameters(tmp_path / "m", uvm_ats_mode="1"))
    assert not state.present
    assert "stock" in state.detail


def test_no_module(tmp_path: Path) -> None:
    assert mode(tmp_path / "none").detail == "nvidia-uvm is not loaded"

"""The CUDA programs that try the preload on a GPU."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.bench import ordered_cost, preload_cost
from tests.bench.core.errors import SuiteError
from tests.unit.strict_nvcc import compiles

pytestmark = pytest.mark.slow(seconds=10, reason="compiles CUDA programs")

EVENT = '{"event":"cost","pid":1,"monotonic":1.0,"realtime":2.0,"allocate":%s,"free":2e-5,"allocate_worst":1e-3,'
EVENT += '"free_worst":1e-3,"asked":100,"taken":%s,"left":0}'


@pytest.mark.parametrize("name", ["zone_overrun.cu", "allocation_cost.cu", "ordered_cost.cu"])
def test_it_compiles_without_a_warning(name: str) -> None:
    compiles(name)


def stand_in(directory: Path) -> Path:
    """A script in the program's place: it costs more where the preload is switched on."""
    program = directory / "allocation_cost"
    plain, preload = EVENT % ("1e-4", "1000"), EVENT % ("1.5e-4", "1030")
    program.write_text(f"#!/bin/sh\nif [ -n \"$MPSGUARD_ZONES\" ]; then echo '{preload}'; else echo '{plain}'; fi\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_costs_are_compared_with_their_bars(tmp_path: Path) -> None:
    found = preload_cost.compare(stand_in(tmp_path), {}, {"MPSGUARD_ZONES": "on"})
    assert [one.size for one in found] == list(preload_cost.SIZES)
    assert found[0].allocate_ratio == pytest.approx(1.5)
    assert found[0].memory_overhead == pytest.approx(0.03)
    assert all(one.latency_holds for one in found)
    assert not any(one.memory_holds for one in found)


def test_a_program_that_fails_is_no_measurement(tmp_path: Path) -> None:
    program = tmp_path / "allocation_cost"
    program.write_text("#!/bin/sh\nexit 4\n")
    program.chmod(0o755)
    with pytest.raises(SuiteError, match="exit 4"):
        preload_cost.cost(program, {}, 1, 1)


def test_pairs_in_stream_order_are_compared_with_their_bar(tmp_path: Path) -> None:
    program = tmp_path / "ordered_cost"
    line = '{"event":"ordered","pair":%s,"kept":2e-6,"released":1e-4,"left":0}'
    program.write_text(
        '#!/bin/sh\n[ "$1 $2 $3" = "$1 2000 9" ] || exit 2\n'
        f"if [ -n \"$MPSGUARD_ZONES\" ]; then echo '{line % '1.5e-6'}'; else echo '{line % '5e-7'}'; fi\n"
    )
    program.chmod(0o755)
    found = ordered_cost.compare(program, {}, {"MPSGUARD_ZONES": "on"})
    assert [one.size for one in found] == list(ordered_cost.SIZES)
    assert found[0].ratio == pytest.approx(3.0)
    # Small ones have no bar.
    assert [one.holds for one in found] == [True, True, False, False, False]

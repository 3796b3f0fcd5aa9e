"""The numbered faults: one table for CUDA programs, simulation, matrix and page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fault_injection import catalog
from fault_injection.catalog import CatalogError, parse
from fault_injection.sim import misdeed
from fault_injection.sim.gpu_faults import FAULTS
from fault_injection.sim.kernel import KERNEL
from tests.unit.strict_nvcc import compiles

pytestmark = pytest.mark.slow(seconds=8, reason="compiles CUDA programs")

ROOT = Path(__file__).resolve().parents[2]
CUDA = ROOT / "fault_injection" / "cuda"
ROW = """
[[fault]]
number = 1
name = "null"
what = "a store"
class = "mmu"
xids = [31]
culprit = [700]
innocents = [700]
"""


def test_every_fault_of_a_client_has_its_cuda_program_and_no_other() -> None:
    (rows,) = re.findall(r"table\[\] = \{(.*?)\n\};", (CUDA / "faults.cuh").read_text(encoding="utf-8"), re.DOTALL)
    assert re.findall(r'\{"(\w+)",', rows) == [fault.name for fault in catalog.FAULTS if fault.by_client]


def test_every_fault_of_a_client_has_its_twin() -> None:
    assert set(misdeed.NAMES) == {fault.name for fault in catalog.FAULTS if fault.by_client and fault.twin}
    assert FAULTS["misaligned"].culprit == 0, "the culprit is told of success"
    assert FAULTS["assert"].contained
    assert FAULTS["near"].names_client
    longest = max(misdeed.NAMES, key=len).encode()
    assert KERNEL.unpack(KERNEL.pack(0.0, longest))[1].rstrip(b"\0") == longest


def test_the_page_is_made_of_the_table() -> None:
    assert (ROOT / "docs" / "reference" / "faults.md").read_text(encoding="utf-8") == catalog.markdown()


def test_what_is_isolated_names_every_fault() -> None:
    page = (ROOT / "docs" / "reference" / "isolation.md").read_text(encoding="utf-8")
    named = {word for cells in re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE) for word in re.findall(r"\w+", cells)}
    assert {fault.name for fault in catalog.FAULTS} - named == set()


def test_numbers_are_in_order() -> None:
    numbers = [fault.number for fault in catalog.FAULTS]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ROW + ROW, "number 1"),
        (ROW + ROW.replace("number = 1", "number = 2"), "name null"),
        (ROW.replace('"mmu"', '"mmo"'), "null: no such class: mmo"),
        (ROW.replace('what = "a store"\n', ""), "null: .*what"),
        (ROW + "colour = 1\n", "null: unknown key colour"),
        (ROW + 'ends = "SIGKILL"\n', "null: ends and in_flight go together"),
        (ROW + "delay_ms = [3, 2]\n", "null: delay_ms is the least and the most"),
        (ROW + "delay_ms = [3]\n", "null: delay_ms is the least and the most"),
        (ROW.replace("null", "a-very-long-name"), "15 at most"),
        (ROW.replace("mmu", "process"), "says how the process ends"),
        (ROW + 'by = "nobody"\n', "done by nobody"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(text: str, words: str) -> None:
    with pytest.raises(CatalogError, match=words):
        parse(text)


def test_the_cuda_programs_compile_without_a_warning() -> None:
    compiles("worker.cu")

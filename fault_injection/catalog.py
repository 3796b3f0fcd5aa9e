"""The numbered faults, typed: `faults.toml` read and checked; `python -m fault_injection.catalog` prints the page.

Standard library only: simulated clients import this, also under the system's own Python.
"""

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PATH: Final = Path(__file__).with_name("faults.toml")
CLASSES: Final = ("mmu", "sm", "engine", "process", "lane", "none")
ENDS: Final = ("", "SIGKILL", "SIGSEGV", "exit")
MEMORY_CGROUP: Final = "memory-cgroup"
_LONGEST_NAME: Final = 15


class CatalogError(ValueError):
    """The table cannot be what is meant: one line with the fault and the reason."""


@dataclass(frozen=True)
class Fault:
    """One row. What each field means stands at the head of `faults.toml`; `fault_class` is `class` there."""

    number: int
    name: str
    what: str
    fault_class: str
    xids: tuple[int, ...]
    culprit: tuple[int, ...]
    innocents: tuple[int, ...]
    accept: tuple[str, ...] = ()
    delay_ms: tuple[float, float] | None = None
    ends: str = ""
    in_flight: bool | None = None
    by: str = "client"
    needs: str = ""
    measured: bool = True
    twin: bool = True

    @property
    def classes(self) -> frozenset[str]:
        """Every class that is right for it."""
        return frozenset({self.fault_class, *self.accept})

    @property
    def by_client(self) -> bool:
        """Whether a client program commits it."""
        return self.by == "client"

    @property
    def never_returns(self) -> bool:
        """Whether the culprit lives on and waits for good."""
        return self.by_client and not self.culprit and not self.ends


def parse(text: str) -> tuple[Fault, ...]:
    """Read a table; CatalogError says what is wrong with it."""
    faults = tuple(_fault(row) for row in tomllib.loads(text).get("fault", []))
    for key in ("number", "name"):
        values = [getattr(fault, key) for fault in faults]
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise CatalogError(f"two faults have the {key} {twice}")
    return faults


def named(name: str) -> Fault:
    """The fault of that name; KeyError if there is none."""
    return BY_NAME[name]


def _fault(row: Mapping[str, Any]) -> Fault:
    name = row.get("name", "?")
    members = {("fault_class" if key == "class" else key): _frozen(value) for key, value in row.items()}
    known = {field.name for field in dataclasses.fields(Fault)}
    if unknown := members.keys() - known:
        raise CatalogError(f"{name}: unknown key {min(unknown)}")
    try:
        fault = Fault(**members)
    except TypeError as error:
        raise CatalogError(f"{name}: {error}") from None
    if complaint := next(_complaints(fault), None):
        raise CatalogError(f"{name}: {complaint}")
    return fault


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _complaints(fault: Fault) -> Iterator[str]:
    if not fault.name.isalnum() or len(fault.name) > _LONGEST_NAME:
        yield f"a name is letters and digits, {_LONGEST_NAME} at most"
    if wrong := fault.classes - set(CLASSES):
        yield f"no such class: {min(wrong)}"
    if fault.ends not in ENDS:
        yield f"no such end: {fault.ends}"
    if fault.by not in ("client", "suite"):
        yield f"done by {fault.by}?"
    if fault.needs not in ("", MEMORY_CGROUP):
        yield f"needs {fault.needs}?"
    if bool(fault.ends) != (fault.in_flight is not None):
        yield "ends and in_flight go together"
    if fault.fault_class == "process" and not fault.ends:
        yield "a process fault says how the process ends"
    if fault.delay_ms is not None and [*fault.delay_ms] != sorted(fault.delay_ms[:1] + fault.delay_ms[-1:]):
        yield "delay_ms is the least and the most"
    if fault.delay_ms is not None and not fault.innocents:
        yield "a delay to whose death?"


def markdown() -> str:
    """The table as a page."""
    lines = [
        "# Faults",
        "",
        "Made by `python -m fault_injection.catalog > docs/reference/faults.md` from `fault_injection/faults.toml`,",
        "which says what each column means. Effects are those of **stock MPS** with driver 580.159.04 on an H200; a",
        "row marked with * is expected and was not seen yet. `scripts/gpu-suite triage` injects each and checks it.",
        "",
        "Every fault has a simulated twin, unless the last column says no.",
        "",
        "| No. | fault | what the culprit does | class | Xid | culprit sees | innocents | twin |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_row(fault) for fault in FAULTS),
    ]
    return "\n".join(lines) + "\n"


def _row(fault: Fault) -> str:
    if fault.ends:
        busy = "kernel in flight" if fault.in_flight else "idle"
        culprit = f"{fault.ends}, {busy}"
    elif fault.culprit:
        culprit = _codes(fault.culprit)
    else:
        culprit = "never comes back" if fault.by_client else "-"
    delay = f" after {fault.delay_ms[0]:g} to {fault.delay_ms[1]:g} ms" if fault.delay_ms else ""
    innocents = f"die: {_codes(fault.innocents)}{delay}" if fault.innocents else "survive"
    cells = (
        f"{fault.number}{'' if fault.measured else ' *'}",
        f"`{fault.name}`",
        fault.what,
        " or ".join((fault.fault_class, *fault.accept)),
        ", ".join(map(str, fault.xids)) or "none",
        culprit,
        innocents,
        "yes" if fault.twin else "no",
    )
    return f"| {' | '.join(cells)} |"


def _codes(codes: tuple[int, ...]) -> str:
    return " or ".join("0 (success)" if code == 0 else str(code) for code in codes)


FAULTS: Final = parse(PATH.read_text(encoding="utf-8"))
BY_NAME: Final[Mapping[str, Fault]] = {fault.name: fault for fault in FAULTS}

if __name__ == "__main__":
    print(markdown(), end="")

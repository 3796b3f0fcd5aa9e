"""Whether the loaded nvidia-uvm is ours."""

from pathlib import Path
from typing import Final, Literal

import msgspec

MODULE: Final = Path("/sys/module/nvidia_uvm")
PREFIX: Final = "uvm_fault_isolation"
_POLICIES: Final = {"0": "off", "1": "on where a TSG is shared", "2": "on always"}


class Loaded(msgspec.Struct, frozen=True):
    """The module as the kernel has it."""

    state: Literal["ours", "stock", "not loaded"]
    driver: str | None = None
    version: str | None = None
    """Of the change."""
    parameters: dict[str, str] = {}

    @property
    def summary(self) -> str:
        """One line."""
        if self.state == "not loaded":
            return "nvidia-uvm is not loaded"
        driver = f" of driver {self.driver}" if self.driver else ""
        if self.state == "stock":
            return f"the stock nvidia-uvm{driver} is loaded: a client's memory fault ends its whole group"
        policy = _POLICIES.get(self.parameters.get(PREFIX, ""), "in a mode unknown to this tool")
        heard = self.parameters.get(f"{PREFIX}_agents", "0") != "0"
        if not heard and self.parameters.get(f"{PREFIX}_without_agent") != "1":
            policy += ", but not now: no agent (mpsguard) has the list of contained faults open"
        return f"nvidia-uvm{driver} with fault isolation {self.version} is loaded: containment is {policy}"


def read(module: Path = MODULE, driver: Path = Path("/sys/module/nvidia/version")) -> Loaded:
    """Ask sysfs; a module that can be seen in part is told as far as it can be."""
    if not module.is_dir():
        return Loaded("not loaded")
    parameters = {
        path.name: _text(path) for path in sorted((module / "parameters").glob(f"{PREFIX}*")) if path.is_file()
    }
    version = parameters.pop(f"{PREFIX}_version", None)
    state: Literal["ours", "stock"] = "stock" if version is None else "ours"
    return Loaded(state, _text(driver) or None, version, parameters)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

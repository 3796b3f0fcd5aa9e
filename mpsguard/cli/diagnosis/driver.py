"""The driver: its modules, its libraries, and whether they are of one version."""

import importlib
from pathlib import Path
from typing import Final

from mpsguard.cli.diagnosis.finding import Finding, note, ok, problem
from mpsguard.guard.sensors import kmod

_MISMATCH: Final = 18
"""NVML_ERROR_LIB_RM_VERSION_MISMATCH (nvml.h)."""


def modules(loaded: Path = Path("/sys/module"), devices: Path = Path("/dev")) -> Finding:
    """Whether the kernel modules are loaded, and which they are."""
    subject = "driver modules"
    missing = [name for name in ("nvidia", "nvidia_uvm") if not (loaded / name).is_dir()]
    if missing:
        names = " and ".join(missing)
        return problem(subject, f"not loaded: {names}: no program can use the GPU", f"modprobe {' '.join(missing)}")
    if not (devices / "nvidia-uvm").exists():
        return problem(subject, f"{devices}/nvidia-uvm is not there: CUDA does not start", "nvidia-modprobe -u -c 0")
    found = _version(loaded / "nvidia")
    of_uvm = _version(loaded / "nvidia_uvm")
    if found and of_uvm and found != of_uvm:
        text = f"nvidia is {found}, the NVIDIA unified-memory module is {of_uvm}: CUDA does not start"
        return problem(subject, text, "install both from one driver, then depmod -a, and load both anew")
    return ok(subject, f"nvidia and nvidia_uvm {found}".rstrip())


def library() -> Finding:
    """Whether the driver's library and the module fit each other; NVML says it."""
    subject = "driver library"
    try:
        pynvml = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return note(subject, "not looked at: no nvidia-ml-py here", "pip install 'mpsguard[daemon]'")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        fix = "reboot, or unload and load the modules" if error.value == _MISMATCH else ""
        return problem(subject, f"NVML: {error}: the guard does not see what runs on the GPU", fix)
    try:
        return ok(subject, f"NVML {pynvml.nvmlSystemGetDriverVersion()}, {pynvml.nvmlDeviceGetCount()} GPU(s)")
    finally:
        pynvml.nvmlShutdown()


def containment() -> Finding:
    """Whether the kernel module with our change is there: without it nothing is wrong."""
    mode = kmod.mode()
    return ok("kernel module", mode.detail) if mode.present else note("kernel module", mode.detail)


def _version(module: Path) -> str:
    try:
        return (module / "version").read_text(encoding="ascii").strip()
    except OSError:
        # A module without one says nothing.
        return ""

"""Errors of zones; each message says in one line what was requested and what is available."""


class ZoneError(Exception):
    """Base class of all zone errors."""


class SettingsError(ZoneError, ValueError):
    """A size or an alignment is not allowed."""


class BudgetError(ZoneError):
    """Arming would exceed the limit: managed memory beyond the free memory can hang the GPU."""


class NoZonesError(ZoneError):
    """This machine supports none of the requested kinds of zones, or cuda-bindings is not installed."""


class ZoneCudaError(ZoneError):
    """A call of the CUDA driver failed."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: CUDA error {code}")
        self.call = call
        self.code = code


class UvmError(ZoneError):
    """The UVM device refused a zone."""

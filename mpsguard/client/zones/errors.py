"""What can go wrong with zones; every one says in a line what was wanted and what is there."""


class ZoneError(Exception):
    """The root of them."""


class SettingsError(ZoneError, ValueError):
    """A size or an alignment that is not allowed."""


class BudgetError(ZoneError):
    """More would be armed than the card can bear: managed memory beyond what is free can hang the GPU."""


class NoZonesError(ZoneError):
    """This machine has none of the kinds of zones that were asked for, or cuda-bindings is not installed."""


class CudaError(ZoneError):
    """A call of the CUDA driver failed."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: CUDA error {code}")
        self.call = call
        self.code = code


class UvmError(ZoneError):
    """The UVM device did not take a zone."""

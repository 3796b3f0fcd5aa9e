"""Messages of the command ``classes``."""

import msgspec

from mpsguard.config import ServiceClass


class Arguments(msgspec.Struct):
    """Of which domain."""

    domain: str | None = None


class ClassView(msgspec.Struct, frozen=True):
    """A service class, and how many use it."""

    domain: str
    directory: str
    """The value for CUDA_MPS_PIPE_DIRECTORY by which a program chooses it."""
    settings: ServiceClass
    clients: int


class ClassList(msgspec.Struct, frozen=True):
    """The service classes of all domains, in the order of the configuration."""

    classes: tuple[ClassView, ...]

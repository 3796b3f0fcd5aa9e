"""The configuration of NVIDIA's device plugin, as far as MPS is concerned, and what follows from it. Pure functions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

_PREFIX: Final = "nvidia.com/"
_RESOURCE: Final = "nvidia.com/gpu"
"""The only one that MPS shares: the plugin ignores names of the user's own with MPS, and MIG devices are left out."""
_SHARED: Final = ".shared"
_MAX_REPLICAS: Final = 48
_MAX_REPLICAS_OLD: Final = 16
"""For GPUs below compute capability 7.5. Both limits are the plugin's."""
_NEW: Final = (7, 5)


class PluginConfigError(Exception):
    """The configuration is wrong; one line says what, where, and what is allowed."""


class _Replicas(msgspec.Struct, frozen=True):
    name: str
    replicas: Annotated[int, Meta(ge=2)]


class _Mps(msgspec.Struct, frozen=True, rename="camel"):
    rename_by_default: bool = False
    resources: tuple[_Replicas, ...] = ()


class _Sharing(msgspec.Struct, frozen=True):
    mps: _Mps | None = None


class PluginConfig(msgspec.Struct, frozen=True):
    """The plugin's file; what has nothing to do with MPS is passed over, as the plugin checks it itself."""

    sharing: _Sharing = _Sharing()


class Gpu(msgspec.Struct, frozen=True):
    """A GPU of this machine."""

    index: int
    uuid: str
    memory: int
    """MiB."""
    capability: tuple[int, int]
    """CUDA compute capability."""
    mig: bool
    """Whether it is partitioned."""


class MpsResource(msgspec.Struct, frozen=True):
    """A resource of the node that MPS shares, with the defaults of its control daemon."""

    name: str
    """Also the path of its directory below the root."""
    uuids: tuple[str, ...]
    memory_limits: tuple[tuple[int, int], ...]
    """GPU number and MiB for each client."""
    percentage: int
    """Active thread percentage of each client."""

    def commands(self) -> list[str]:
        """Return the commands that set the defaults, in the plugin's order."""
        limits = [f"set_default_device_pinned_mem_limit {index} {limit}M" for index, limit in self.memory_limits]
        return [*limits, f"set_default_active_thread_percentage {self.percentage}"]


def load(path: Path | None) -> PluginConfig:
    """Return the configuration in a YAML or JSON file, that of no sharing without one; raises PluginConfigError."""
    if path is None:
        return PluginConfig()
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=PluginConfig)
    except OSError as error:
        raise PluginConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise PluginConfigError(f"{path}: {' '.join(str(error).split())}") from None


def resource(config: PluginConfig, gpus: Sequence[Gpu]) -> MpsResource | None:
    """Return the resource that MPS shares, or None if there is none or no GPU for it.

    Raises:
        PluginConfigError: more replicas than an MPS server has places for.
    """
    mps = config.sharing.mps
    whole = [gpu for gpu in gpus if not gpu.mig]
    if mps is None or not whole:
        return None
    wanted = next((each for each in mps.resources if _full(each.name) == _RESOURCE), None)
    if wanted is None:
        return None
    for gpu in whole:
        most = _MAX_REPLICAS if gpu.capability >= _NEW else _MAX_REPLICAS_OLD
        if wanted.replicas > most:
            raise PluginConfigError(
                f"sharing.mps.resources: {wanted.name}: {wanted.replicas} replicas; at most {most} on GPU {gpu.index}"
            )
    return MpsResource(
        _RESOURCE + (_SHARED if mps.rename_by_default else ""),
        tuple(gpu.uuid for gpu in whole),
        tuple((gpu.index, gpu.memory // wanted.replicas) for gpu in whole if gpu.memory),
        100 // wanted.replicas,
    )


def _full(name: str) -> str:
    return name if name.startswith(_PREFIX) else _PREFIX + name

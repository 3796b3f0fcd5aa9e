"""The configuration of NVIDIA's device plugin, as far as MPS is concerned, and what follows from it. Pure functions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import yaml

_PREFIX: Final = "nvidia.com/"
_RESOURCE: Final = "nvidia.com/gpu"
"""The only one that MPS shares: the plugin ignores names of the user's own with MPS, and MIG devices are left out."""
_SHARED: Final = ".shared"
_VERSION: Final = "v1"
_MIN_REPLICAS: Final = 2
_MAX_REPLICAS: Final = 48
_MAX_REPLICAS_OLD: Final = 16
"""For GPUs below compute capability 7.5. Both limits are the plugin's."""
_NEW: Final = (7, 5)


class PluginConfigError(Exception):
    """The configuration is wrong; one line says what, where, and what is allowed."""


class SharedResource(msgspec.Struct, frozen=True):
    """An entry of ``sharing.mps.resources``."""

    name: str
    replicas: int


class PluginConfig(msgspec.Struct, frozen=True):
    """What the plugin's file says of MPS; the plugin checks what has nothing to do with it itself."""

    rename_by_default: bool = False
    resources: tuple[SharedResource, ...] = ()
    """With names as written."""
    passed_over: tuple[str, ...] = ()
    """Keys that have no effect: unknown ones, and those that the plugin ignores with MPS."""

    @property
    def wanted(self) -> SharedResource | None:
        """The resource that MPS is to share, or None."""
        return next((each for each in self.resources if _full(each.name) == _RESOURCE), None)


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
    """Return the configuration in a YAML or JSON file, that of no sharing without one; raises PluginConfigError.

    It is read as by the plugin's decoder, which makes JSON of the first document, and takes an empty one for no keys
    (sigs.k8s.io/yaml and encoding/json; NVIDIA/k8s-device-plugin, api/config/v1). The fallback of its config-manager is
    a link to /dev/null.
    """
    if path is None:
        return PluginConfig()
    try:
        document = next(iter(yaml.safe_load_all(path.read_bytes())), None)
        return _read(document)
    except OSError as error:
        raise PluginConfigError(f"{path}: cannot be read: {error.strerror}") from None
    # A number or a date that is none is no error of YAML's to the library.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PluginConfigError(f"{path}: {' '.join(str(error).split())}") from None
    except _WrongError as error:
        raise PluginConfigError(f"{path}: {error}") from None


class _WrongError(Exception):
    """A value is not what the plugin's decoder takes."""


class _Mapping:
    """A mapping of the file; ``at``: its place, with a dot at the end."""

    def __init__(self, value: object, at: str, known: tuple[str, ...], passed_over: list[str]) -> None:
        if value is not None and not isinstance(value, dict):
            raise _WrongError(f"{at.rstrip('.') or 'the file'}: {value!r} is no mapping")
        self._values = {str(key): each for key, each in (value or {}).items()}
        self.at = at
        passed_over += [f"{at}{key}" for key in self._values if key.lower() not in map(str.lower, known)]

    def get(self, key: str) -> object:
        """Return a value, None without one. Where no key is the same, the decoder takes one in another case."""
        alike = next((value for each, value in self._values.items() if each.lower() == key.lower()), None)
        return self._values.get(key, alike)


def _read(document: object) -> PluginConfig:
    """Return the configuration in a decoded file; raises _WrongError."""
    passed_over: list[str] = []
    file = _Mapping(document, "", ("version", "flags", "resources", "sharing", "imex"), passed_over)
    if file.get("version") not in (None, "", _VERSION):
        raise _WrongError(f"version: {file.get('version')!r} is not {_VERSION}")
    sharing = _Mapping(file.get("sharing"), "sharing.", ("timeSlicing", "mps"), passed_over)
    known = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
    mps = _Mapping(sharing.get("mps"), "sharing.mps.", known, passed_over)
    renames = mps.get("renameByDefault")
    if not isinstance(renames, bool | None):
        raise _WrongError(f"{mps.at}renameByDefault: {renames!r} is neither true nor false")
    entries = mps.get("resources")
    if not isinstance(entries, list | None):
        raise _WrongError(f"{mps.at}resources: {entries!r} is no list")
    resources = tuple(_shared(entry, f"{mps.at}resources[{n}].", passed_over) for n, entry in enumerate(entries or []))
    return PluginConfig(bool(renames), resources, tuple(passed_over))


def _shared(entry: object, at: str, passed_over: list[str]) -> SharedResource:
    values = _Mapping(entry, at, ("name", "replicas", "devices"), passed_over)
    if values.get("devices") not in (None, "all"):
        passed_over.append(f"{at}devices")
    name, replicas = values.get("name"), values.get("replicas")
    if not isinstance(name, str):
        raise _WrongError(f"{at}name: {name!r} is no text")
    # JSON has one kind of number.
    if isinstance(replicas, float) and replicas.is_integer():
        replicas = int(replicas)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < _MIN_REPLICAS:
        raise _WrongError(f"{at}replicas: {replicas!r} is no whole number from {_MIN_REPLICAS} on")
    return SharedResource(name, replicas)


def resource(config: PluginConfig, gpus: Sequence[Gpu]) -> MpsResource | None:
    """Return the resource that MPS shares, or None if there is none or no GPU for it.

    Raises:
        PluginConfigError: more replicas than an MPS server has places for.
    """
    wanted = config.wanted
    whole = [gpu for gpu in gpus if not gpu.mig]
    if wanted is None or not whole:
        return None
    for gpu in whole:
        most = _MAX_REPLICAS if gpu.capability >= _NEW else _MAX_REPLICAS_OLD
        if wanted.replicas > most:
            raise PluginConfigError(
                f"sharing.mps.resources: {wanted.name}: {wanted.replicas} replicas; at most {most} on GPU {gpu.index}"
            )
    return MpsResource(
        _RESOURCE + (_SHARED if config.rename_by_default else ""),
        tuple(gpu.uuid for gpu in whole),
        tuple((gpu.index, gpu.memory // wanted.replicas) for gpu in whole if gpu.memory),
        100 // wanted.replicas,
    )


def _full(name: str) -> str:
    return name if name.startswith(_PREFIX) else _PREFIX + name

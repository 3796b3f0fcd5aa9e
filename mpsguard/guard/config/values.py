"""Values that several sections have: GPUs and limits of memory."""

import re
from typing import Final

from mpsguard.guard.config.errors import ConfigError

_LIMIT: Final = re.compile(r"^[1-9][0-9]{0,8}[GM]$")
_GPU: Final = re.compile(r"^([0-9]{1,3}|GPU-[0-9a-fA-F-]{1,40}|MIG-[0-9a-zA-Z/-]{1,80})$")


def is_gpu(text: str) -> bool:
    """Return whether ``text`` is a GPU number or a UUID."""
    return _GPU.match(text) is not None


def check_gpu(key: str, text: str) -> None:
    """Raise ConfigError unless ``text`` is a GPU number or a UUID."""
    if not is_gpu(text):
        raise ConfigError(f"{key}: {text!r} is neither a GPU number nor a UUID")


def check_limit(key: str, text: str) -> None:
    """Raise ConfigError unless ``text`` is a limit of memory."""
    if not _LIMIT.match(text):
        raise ConfigError(f'{key}: {text!r} is no whole number with G or M, such as "8G"')

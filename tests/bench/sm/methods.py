"""The ways to attribute an SM fault that the guard has: what it is told, and what its clients' environment has."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.core.guard import Options

LIGHT: Final = {
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
    "CUDA_COREDUMP_GENERATION_FLAGS": "skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,"
    "skip_local_memory,skip_constbank_memory",
}
"""What docs/guides/sm-faults.md tells clients that opt in."""
FULL: Final = {"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1"}


@dataclass(frozen=True)
class Method:
    """One way."""

    name: str
    sentinel: bool = False
    environment: Mapping[str, str] | None = None

    def options(self, cores: Path) -> Options:
        """The guard's configuration; opted-in clients write into ``cores``."""
        return Options(sentinel=self.sentinel, core_directory=cores if self.environment else None)

    @contextmanager
    def opted_in(self, cores: Path) -> Iterator[None]:
        """Clients that are started in the block have the environment that the way asks of them."""
        if self.environment is None:
            yield
            return
        added = {**self.environment, "CUDA_COREDUMP_FILE": f"{cores}/core.%p"}
        before = {name: os.environ.get(name) for name in added}
        os.environ.update(added)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


NOTHING: Final = Method("nothing")
SENTINEL: Final = Method("sentinel", sentinel=True)
LIGHT_DUMPS: Final = Method("light dumps", environment=LIGHT)
FULL_DUMPS: Final = Method("full dumps", environment=FULL)
METHODS: Final = (NOTHING, SENTINEL, LIGHT_DUMPS, FULL_DUMPS)

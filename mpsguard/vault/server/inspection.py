"""Checks that received descriptors are the memory that was announced. Pure, except that it inspects the descriptors."""

from collections.abc import Sequence

from mpsguard.linux.descriptors import open_file
from mpsguard.linux.descriptors.open_file import MemoryKind, OpenFile
from mpsguard.vault.wire.errors import BadRequestError
from mpsguard.vault.wire.region import RegionLayout


def check_memory(layout: RegionLayout, files: Sequence[OpenFile], *, simulated: bool) -> None:
    """Raise BadRequestError unless there is one distinct descriptor of the right kind and size for each chunk.

    The size of GPU memory cannot be read from its descriptor; a wrong size shows when it is mapped and affects only its
    owner.

    Args:
        layout: the announced layout.
        files: the received descriptors.
        simulated: whether host memory may stand for GPU memory.
    """
    if len(files) != len(layout.sizes):
        raise BadRequestError(f"{len(files)} descriptors for {len(layout.sizes)} chunks")
    wanted = (
        (MemoryKind.HOST,)
        if layout.gpu is None
        else (MemoryKind.GPU, MemoryKind.HOST)
        if simulated
        else (MemoryKind.GPU,)
    )
    for index, (file, size) in enumerate(zip(files, layout.sizes, strict=True)):
        if file.kind not in wanted:
            allowed = " or ".join(kind.value for kind in wanted)
            raise BadRequestError(f"chunk {index}: a descriptor of kind {file.kind.value}, not {allowed}")
        if file.kind is MemoryKind.HOST and file.size != size:
            raise BadRequestError(f"chunk {index}: {file.size} bytes, announced were {size}")
    inodes = [file.inode for file in files if file.kind is MemoryKind.HOST]
    if len(set(inodes)) != len(inodes):
        raise BadRequestError("the same memory came twice")


def check_distinct(files: Sequence[OpenFile], fds: Sequence[int]) -> None:
    """Raise BadRequestError if a GPU memory handle was sent twice.

    All GPU memory handles have the same inode, so this compares the open files behind the descriptors.
    """
    if not open_file.distinct([fd for fd, file in zip(fds, files, strict=True) if file.kind is MemoryKind.GPU]):
        raise BadRequestError("the same memory came twice")

"""Messages of the command ``pods``: the pods of this node, told by the process that knows them."""

from typing import Annotated

import msgspec

from mpsguard.guard.pods import MAX_PODS, Pod


class Arguments(msgspec.Struct):
    """All pods; they take the place of those told before."""

    pods: Annotated[tuple[Pod, ...], msgspec.Meta(max_length=MAX_PODS)]


class PodsNoted(msgspec.Struct, frozen=True):
    """How many pods the guard knows now."""

    count: int

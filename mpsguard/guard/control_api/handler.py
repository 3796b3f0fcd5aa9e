"""The server half of a command, as the control API calls it."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec

from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.linux.decoding import decoded

Needs_contra = TypeVar("Needs_contra", contravariant=True)
A = TypeVar("A", bound=msgspec.Struct)


class Handler(Generic[Needs_contra, A]):
    """The server half of one command: its name, the type of its arguments, and what carries it out."""

    def __init__(
        self,
        name: str,
        arguments: type[A],
        serve: Callable[[Needs_contra, A], Awaitable[msgspec.Struct]],
        *,
        goes_on: str = "",
    ) -> None:
        """``goes_on``: what is not broken off at the deadline of a request, and what tells its outcome."""
        self.name = name
        self.goes_on = goes_on
        self.arguments = arguments
        self._decoder = msgspec.json.Decoder(arguments)
        self._serve = serve

    async def __call__(self, guard: Needs_contra, raw: msgspec.Raw) -> msgspec.Struct:
        """Carry the command out; raises RequestError."""
        try:
            arguments = decoded(self._decoder.decode, raw)
        except msgspec.DecodeError as error:
            raise RequestError("arguments", f"{self.name}: {error}") from None
        return await self._serve(guard, arguments)

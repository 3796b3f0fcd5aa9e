"""The control API: requests, and the arguments of every command."""

import json
from random import Random
from typing import Any, Final

import msgspec

from fault_injection.fuzzing.loop import CaseLoop
from fault_injection.fuzzing.mutation import (
    NESTED_JSON,
    changed_message,
    changed_text,
    in_place_of_a_value,
    index,
    nested,
    value,
)
from fault_injection.fuzzing.surface import BrokenPromiseError, Surface
from mpsguard.guard.control_api import protocol
from mpsguard.guard.control_api.protocol import Reply
from mpsguard.guard.control_api.server import Handler, reply
from mpsguard.guard.daemon.commands.table import HANDLERS

_ANSWERS: Final = frozenset({"malformed", "version", "unknown_command", "arguments", "deadline"})
"""What a request may be answered with when nothing is wrong with the guard."""
_DEEPEST: Final = 1 << 16


async def _given(_: None, arguments: msgspec.Struct) -> msgspec.Struct:
    return arguments


_DECODERS: Final = {name: Handler(name, handler.arguments, _given) for name, handler in HANDLERS.items()}
"""All commands with their own arguments; what they do is left out."""
_FIELDS: Final = tuple(
    sorted(
        {field.encode_name for handler in HANDLERS.values() for field in msgspec.structs.fields(handler.arguments)}
        | {"v", "command", "args", "id", "deadline"}
    )
)


def _text(message: Any) -> bytes:
    # As lax as JSON readers are: NaN, Infinity and lone surrogates are written as they come.
    return json.dumps(message, ensure_ascii=False).encode(errors="surrogatepass")


class ControlApi(Surface[bytes]):
    """From the payload of a message to that of its answer."""

    name = "control API"
    share = 100

    def __init__(self) -> None:
        self._loop = CaseLoop()
        self._names = list(_DECODERS)

    def make(self, chance: Random) -> bytes:
        """A request with arguments, changed as a message, as a text, or by something deep in it."""
        command = self._names[index(chance, len(self._names))]
        known = msgspec.structs.fields(_DECODERS[command].arguments)
        args = {field.encode_name: value(chance) for field in known if chance.random() < 0.5}
        request = {"v": protocol.VERSION, "command": command, "args": args, "id": "1", "deadline": 10.0}
        kind = index(chance, 10)
        if kind < 6:
            return _text(changed_message(chance, request, _FIELDS))
        if kind == 6:
            return _text(request)
        if kind == 7 and chance.random() < 0.1:
            return in_place_of_a_value(chance, _text(request), nested(chance, NESTED_JSON, _DEEPEST))
        return changed_text(chance, _text(request))[: protocol.MAX_MESSAGE]

    def feed(self, case: bytes) -> None:
        """Answer it, and write the answer down."""
        answer = self._loop.run(reply(None, _DECODERS, case, busy=False))
        if answer.error is not None and answer.error.code not in _ANSWERS:
            raise BrokenPromiseError(f"answered {answer.error}")
        msgspec.json.decode(msgspec.json.encode(answer), type=Reply)

    def close(self) -> None:
        """Close the loop."""
        self._loop.close()

"""What a wrong configuration raises, and what is wrong with a value in the words of its user."""

import re
from collections.abc import Mapping
from typing import Final, Literal, get_args, get_origin, get_type_hints

import msgspec

_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$?\.?(?P<where>[^`]*)`)?$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `([^`]*)`")
_MISSING: Final = re.compile(r"Object missing required field `([^`]*)`")
_ENUM: Final = "Invalid enum value "
_KIND: Final = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_BOUND: Final = re.compile(r"Expected `[^`]*` (>=|>|<=|<) (\S+)")
_LENGTH: Final = re.compile(r"Expected `[^`]*` of length (>=|<=|==)? ?(\d+)")
_PATTERN: Final = re.compile(r"Expected `str` matching regex ")
_INDEX: Final = re.compile(r"\[(\d+|\.\.\.)\]")
_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
_BOUNDS: Final = {">=": "at least", ">": "above", "<=": "at most", "<": "below", "==": "exactly", None: "exactly"}


class ConfigError(Exception):
    """The configuration is invalid; one line says file, key, and what is allowed."""


def explained(message: str, sections: Mapping[str, type[msgspec.Struct]]) -> str:
    """Return a message of msgspec about a value in other words; ``sections``: types by path (``domain[].policy``)."""
    match = _AT.match(message)
    assert match is not None
    what, where = match["what"], match["where"] or ""
    prefix = f"{where}." if where else ""
    section = sections.get(_INDEX.sub("[]", where))
    if unknown := _UNKNOWN.match(what):
        allowed = f"; allowed here: {', '.join(section.__struct_encode_fields__)}" if section else ""
        return f"{prefix}{unknown[1]}: unknown key{allowed}"
    if missing := _MISSING.match(what):
        return f"{prefix}{missing[1]}: is missing, and has no default"
    said = _value_words(what, where, sections)
    return f"{where}: {said}" if where else said


def _value_words(what: str, where: str, sections: Mapping[str, type[msgspec.Struct]]) -> str:
    """Return what is wrong with the value at ``where``."""
    if what.startswith(_ENUM):
        parent, _, field = where.rpartition(".")
        section = sections.get(_INDEX.sub("[]", parent))
        if section is not None:
            return f"{what.removeprefix(_ENUM)} is none of {', '.join(_words(get_type_hints(section)[field]))}"
    if kind := _KIND.match(what):
        return f"must be {_kinds(kind[1])}, not {_kinds(kind[2])}"
    if length := _LENGTH.match(what):
        return f"must have {_BOUNDS[length[1]]} {length[2]} entries or characters"
    if bound := _BOUND.match(what):
        return f"must be {_BOUNDS[bound[1]]} {bound[2].removesuffix('.0')}"
    if _PATTERN.match(what):
        # The names of domains and classes are the only texts with a pattern.
        return "is no name: 1 to 32 of a-z, 0-9 and -, the first one a letter or a digit"
    return what[:1].lower() + what[1:]


def _kinds(kinds: str) -> str:
    return " or ".join(_KINDS.get(kind, kind) for kind in kinds.split(" | "))


def _words(hint: object) -> list[str]:
    """Return the words that a type allows: those of its literals, wherever they stand in it."""
    if get_origin(hint) is Literal:
        return [str(word) for word in get_args(hint)]
    return [word for part in get_args(hint) for word in _words(part)]

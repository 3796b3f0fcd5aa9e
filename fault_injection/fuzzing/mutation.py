"""Changes of valid specimens: of bytes, of texts with numbers in them, and of messages before they are encoded."""

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

import msgspec

NUMBERS: Final = (
    *(0, 1, -1, 2, 3, 7, 8, 63, 64, 100, 127, 128, 253, 254, 255, 256, 4095, 4096, 8191, 8192, 32767, 65535, 65536),
    *((1 << 22) - 1, 1 << 22, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 47, 1 << 48, 1 << 57),
    *((1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 31), -(1 << 63)),
)
"""At which something usually changes: powers of two, and the bounds of this project's formats."""

_MOST_CHANGES: Final = 4
_LONGEST_REPEAT: Final = 64
_BYTES: Final = (
    *(b"\0", b"\n", b"\r", b"\x1b", b"\xff", b"\xfe", b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xe2\x80\xa8"),
    *(b"\x85", b"\xc2\x85", b"=", b";", b",", b":", b" ", b"'", b"(", b")", b"@", b"\\x0a", b"%s", b"-", b"0x", b"\t"),
    *(b"\xc1", b"\xc7\x08\x01", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91"),
)
_DIGITS: Final = re.compile(rb"[0-9]+")


def index(chance: Random, size: int) -> int:
    """A number below ``size``, 0 if that is 0. Several times quicker than `Random.randrange`."""
    return int(chance.random() * size)


def number(chance: Random) -> int:
    """A number that is likely to be a bound of something, or beside one."""
    return NUMBERS[index(chance, len(NUMBERS))] + (index(chance, 3) - 1 if chance.random() < 0.3 else 0)


def _written(chance: Random) -> bytes:
    width = (1, 2, 4, 8)[index(chance, 4)]
    return (number(chance) & ((1 << 8 * width) - 1)).to_bytes(width, "little" if chance.random() < 0.7 else "big")


def digits(chance: Random) -> bytes:
    """A number as text: a bound, one that is far too long, or one of a form that int() takes and few others do."""
    kind = index(chance, 8)
    if kind < 5:
        return str(number(chance)).encode()
    if kind == 5:
        return b"9" * (1 << index(chance, 14))
    return (b"1_000", b"+5", b" 7", b"-0", "\u0661\u0662".encode(), b"0x10", b"1e9", b"NaN", b"", b"00000001")[
        index(chance, 10)
    ]


def changed(chance: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """``data`` after one to four changes of bytes; ``others`` are specimens to splice it with."""
    for _ in range(1 + index(chance, _MOST_CHANGES)):
        data = _changed_once(chance, data, others)
    return data


def _changed_once(chance: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = index(chance, len(data) + 1)
    end = min(at + 1 + index(chance, 1 << index(chance, 8)), len(data))
    kind = index(chance, 10)
    if kind == 0 and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << index(chance, 8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + data[end:]
    if kind == 3:
        return data[:end] + data[at:end] * (1 + index(chance, _LONGEST_REPEAT)) + data[end:]
    if kind == 4:
        return data[:at] + _BYTES[index(chance, len(_BYTES))] * (1 << index(chance, 7)) + data[at:]
    if kind == 5:
        written = _written(chance)
        return data[:at] + written + data[at + len(written) :]
    if kind == 6 and others:
        other = others[index(chance, len(others))]
        return data[:at] + other[index(chance, len(other) + 1) :]
    if kind == 7:
        return data[:at] + chance.randbytes(end - at) + data[end:]
    if kind == 8:
        return data[:at] + bytes(end - at) + data[end:]
    return data[:at] + _BYTES[index(chance, len(_BYTES))] + data[end:]


def changed_text(chance: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """The same, or another number in place of one."""
    found = list(_DIGITS.finditer(data))
    if found and chance.random() < 0.5:
        place = found[index(chance, len(found))]
        data = data[: place.start()] + digits(chance) + data[place.end() :]
        if chance.random() < 0.5:
            return data
    return changed(chance, data, others)


_NESTED: Final = 3


def value(chance: Random, depth: int = 0) -> Any:
    """Something that msgpack and JSON can say, of any kind."""
    kind = index(chance, 12 if depth < _NESTED else 9)
    if kind < 3:
        return max(min(number(chance), (1 << 64) - 1), -(1 << 63))
    if kind == 3:
        return (None, True, False)[index(chance, 3)]
    if kind == 4:
        return (0.0, -0.0, 1e308, -1e308, 5e-324, float("inf"), float("nan"), 1.5)[index(chance, 8)]
    if kind == 5:
        return "x" * (1 << index(chance, 15))
    if kind == 6:
        return ("", "\0", "\n", "\x1b[2J", "\u2028", "writer", "../../etc", "GPU-0", "a" * 128, "\U0010ffff")[
            index(chance, 10)
        ]
    if kind == 7:
        return chance.randbytes(index(chance, 40)).decode("latin-1")
    if kind == 8:
        return []
    if kind == 9:
        return [value(chance, depth + 1) for _ in range(index(chance, 5))]
    if kind == 10:
        return {f"k{at}": value(chance, depth + 1) for at in range(index(chance, 4))}
    return [number(chance) & 0xFFFF_FFFF] * (1 << index(chance, 13))


def changed_message(chance: Random, message: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """A message with one to three fields put, replaced or left out; ``fields`` are names that others have."""
    result = dict(message)
    for _ in range(1 + index(chance, 3)):
        names = list(result)
        kind = index(chance, 5)
        if kind == 0 and names:
            del result[names[index(chance, len(names))]]
        elif kind == 1:
            result[fields[index(chance, len(fields))]] = value(chance)
        elif names:
            name = names[index(chance, len(names))]
            inner = result[name]
            if isinstance(inner, dict) and chance.random() < 0.7:
                result[name] = changed_message(chance, inner, fields)
            else:
                result[name] = value(chance)
    return result


NESTED_MSGPACK: Final = (b"\x91", b"\x81\xa1a", b"\x81", b"\xdd\x00\x00\x00\x01", b"\xc4\x01", b"\x92\xc0")
"""The beginning of a list, map or bytes in a list, map or bytes: repeated, it is as deep as a packet is long."""

NESTED_JSON: Final = (b"[", b'{"a":', b'{"args":', b"[[", b"[{")


def nested(chance: Random, beginnings: Sequence[bytes], most: int) -> bytes:
    """Something as deep as ``most`` bytes allow, or less deep."""
    one = beginnings[index(chance, len(beginnings))]
    return one * max(1, (most >> index(chance, 12)) // len(one))


def in_place_of_a_value(chance: Random, data: bytes, deep: bytes) -> bytes:
    """``data`` up to some point, and then ``deep``."""
    return data[: index(chance, len(data) + 1)] + deep


def changed_packet(
    chance: Random,
    messages: Sequence[Mapping[str, Any]],
    packets: Sequence[bytes],
    fields: Sequence[str],
    *,
    as_messages: int,
    deepest: int,
) -> bytes:
    """One of some MessagePack ``messages``: of 20, ``as_messages`` changed as messages, others as bytes, one by depth.

    ``packets``: the same, encoded. ``deepest``: bytes of the nesting.
    """
    which = index(chance, len(packets))
    kind = index(chance, 20)
    if kind < as_messages:
        return msgspec.msgpack.encode(changed_message(chance, messages[which], fields))
    if kind < 19:
        return changed(chance, packets[which], packets)
    return in_place_of_a_value(chance, packets[which], nested(chance, NESTED_MSGPACK, deepest))

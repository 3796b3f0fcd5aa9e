"""What the vault refuses, and why: one code on the wire for each exception, the same at both ends."""

from enum import StrEnum
from typing import ClassVar, Final


class Code(StrEnum):
    """Why a request was refused."""

    BAD_REQUEST = "bad_request"
    """Not understood, out of order, or with descriptors that are no memory of the size that was declared."""
    TOO_LARGE = "too_large"
    """A name, metadata, state or number of chunks beyond its limit."""
    NOT_PERMITTED = "not_permitted"
    """Another user's session, or a reader that would write."""
    UNKNOWN_SESSION = "unknown_session"
    UNKNOWN_REGION = "unknown_region"
    EXISTS = "exists"
    """There is a region of that name already."""
    WRONG_GPU = "wrong_gpu"
    """The region lies on another GPU than the one expected, or on none of this guard's."""
    STALE_GENERATION = "stale_generation"
    """The writer was fenced off: somebody else writes now, or may."""
    LAYOUT_MISMATCH = "layout_mismatch"
    """Sizes or addresses are not those expected, or overlap another region's."""
    LEASE_HELD = "lease_held"
    """Somebody else holds the lease that is asked for, or maps what is to be released."""
    SEALED = "sealed"
    QUOTA = "quota"
    UNAVAILABLE = "unavailable"
    """The vault cannot be reached, or cannot keep safe what it is given. Nothing was done; later it may be."""


class VaultError(Exception):
    """A request that was refused as a whole; nothing of it was done."""

    code: ClassVar[Code]

    retried = False
    """At a client: the connection broke and the request was sent twice; the first may have been carried out."""


class BadRequestError(VaultError):
    """See `Code.BAD_REQUEST`."""

    code = Code.BAD_REQUEST


class TooLargeError(VaultError):
    """See `Code.TOO_LARGE`."""

    code = Code.TOO_LARGE


class NotPermittedError(VaultError):
    """See `Code.NOT_PERMITTED`."""

    code = Code.NOT_PERMITTED


class UnknownSessionError(VaultError):
    """There is no session of that name."""

    code = Code.UNKNOWN_SESSION


class UnknownRegionError(VaultError):
    """There is no region of that name in the session."""

    code = Code.UNKNOWN_REGION


class ExistsError(VaultError):
    """See `Code.EXISTS`."""

    code = Code.EXISTS


class WrongGpuError(VaultError):
    """See `Code.WRONG_GPU`."""

    code = Code.WRONG_GPU


class StaleGenerationError(VaultError):
    """See `Code.STALE_GENERATION`."""

    code = Code.STALE_GENERATION


class LayoutMismatchError(VaultError):
    """See `Code.LAYOUT_MISMATCH`."""

    code = Code.LAYOUT_MISMATCH


class LeaseHeldError(VaultError):
    """See `Code.LEASE_HELD`."""

    code = Code.LEASE_HELD


class SealedError(VaultError):
    """The region is sealed: it is not changed any more."""

    code = Code.SEALED


class QuotaError(VaultError):
    """The user, or the vault as a whole, holds as much as it may."""

    code = Code.QUOTA


class UnavailableError(VaultError):
    """See `Code.UNAVAILABLE`."""

    code = Code.UNAVAILABLE


_BY_CODE: Final[dict[str, type[VaultError]]] = {
    error.code: error
    for error in (
        BadRequestError,
        TooLargeError,
        NotPermittedError,
        UnknownSessionError,
        UnknownRegionError,
        ExistsError,
        WrongGpuError,
        StaleGenerationError,
        LayoutMismatchError,
        LeaseHeldError,
        SealedError,
        QuotaError,
        UnavailableError,
    )
}


def from_code(code: str, message: str) -> VaultError:
    """The exception for a code that came over the wire; a code of a later version becomes an UnavailableError."""
    kind = _BY_CODE.get(code)
    return UnavailableError(f"{code}: {message}") if kind is None else kind(message)

"""The vault's errors: one code on the wire for each exception, the same on both sides."""

from enum import StrEnum
from typing import ClassVar, Final


class Code(StrEnum):
    """Why a request was refused."""

    BAD_REQUEST = "bad_request"
    """Malformed, out of order, or with descriptors that are not memory of the announced size."""
    TOO_LARGE = "too_large"
    """A name, metadata, state or number of chunks exceeds its limit."""
    NOT_PERMITTED = "not_permitted"
    """Another user's session, or a reader that tries to write."""
    UNKNOWN_SESSION = "unknown_session"
    UNKNOWN_REGION = "unknown_region"
    EXISTS = "exists"
    """A region of that name exists already."""
    WRONG_GPU = "wrong_gpu"
    """The region lies on another GPU than expected, or on a GPU that this guard does not have."""
    STALE_GENERATION = "stale_generation"
    """The writer was fenced off: another process writes now, or may."""
    LAYOUT_MISMATCH = "layout_mismatch"
    """Sizes or addresses differ from those expected, or overlap another region."""
    LEASE_HELD = "lease_held"
    """Another process holds the requested lease, or maps the memory that is to be released."""
    SEALED = "sealed"
    QUOTA = "quota"
    UNAVAILABLE = "unavailable"
    """The vault cannot be reached, or cannot store what it is given. Nothing was done; a retry may succeed."""


class VaultError(Exception):
    """A request that was refused as a whole, without effect."""

    code: ClassVar[Code]

    retried = False
    """In a client: the connection broke and the request was sent twice; the first one may have taken effect."""


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
    """The region is sealed and cannot be changed."""

    code = Code.SEALED


class QuotaError(VaultError):
    """The user's quota, or that of the whole vault, is exhausted."""

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
    """Return the exception for a code from the wire; UnavailableError for an unknown code (a later version)."""
    kind = _BY_CODE.get(code)
    return UnavailableError(f"{code}: {message}") if kind is None else kind(message)

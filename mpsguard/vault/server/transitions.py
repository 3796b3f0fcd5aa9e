"""State transitions of a session: pure functions that return the next `SessionRecord` or raise a VaultError."""

from collections.abc import Sequence

from msgspec.structs import replace

from mpsguard.vault.wire.errors import (
    BadRequestError,
    ExistsError,
    LayoutMismatchError,
    LeaseHeldError,
    NotPermittedError,
    SealedError,
    StaleGenerationError,
    UnknownRegionError,
    WrongGpuError,
)
from mpsguard.vault.wire.region import Carried, Lease, LeaseRole, RegionLayout, RegionRecord, SessionRecord


def check_permitted(session: SessionRecord, uid: int, role: LeaseRole) -> None:
    """Raise NotPermittedError if ``uid`` may not attach in that role."""
    if uid == session.key.uid:
        return
    grant = next((grant for grant in session.grants if grant.uid == uid), None)
    if grant is None or (role is not LeaseRole.READER and not grant.write):
        raise NotPermittedError(f"uid {uid} may not be {role} of a session of uid {session.key.uid}")


def check_may_write(session: SessionRecord, token: int) -> None:
    """Raise NotPermittedError if the holder of ``token`` may not become the writer."""
    check_permitted(session, _lease(session, token).uid, LeaseRole.WRITER)


def attach(session: SessionRecord, lease: Lease) -> SessionRecord:
    """Add a lease; raise LeaseHeldError if it is a writer's and there is a writer."""
    check_permitted(session, lease.uid, lease.role)
    if lease.role is LeaseRole.WRITER:
        if session.writer is not None:
            raise LeaseHeldError(f"process {session.writer.process.pid} is the writer of {session.key.name!r}")
        return replace(session, writer=lease, idle_since=None, orphaned=False)
    return replace(session, readers=(*session.readers, lease), idle_since=None)


def fence(session: SessionRecord, carried: Carried) -> SessionRecord:
    """Fence the writer off, if there is one, and begin a new generation; the session becomes an orphan.

    The former writer's lease still protects its regions from being released, since it may map them. ``carried`` is the
    forward state that counts.
    """
    writer = session.writer
    if writer is None:
        return session
    readers = (*session.readers, replace(writer, role=LeaseRole.FENCED))
    return replace(
        session, writer=None, readers=readers, generation=session.generation + 1, carried=carried, orphaned=True
    )


def ready(session: SessionRecord, token: int) -> SessionRecord:
    """Record that a standby could take over at once.

    No effect on a writer, which a standby becomes by its promotion.

    Raises:
        NotPermittedError: the lease is a reader's.
        StaleGenerationError: the lease was fenced off or has ended.
    """
    lease = _lease(session, token)
    if lease.role is LeaseRole.WRITER:
        return session
    if lease.role is LeaseRole.FENCED:
        raise StaleGenerationError(f"fenced off; {session.key.name!r} is at generation {session.generation}")
    if lease.role is not LeaseRole.STANDBY:
        raise NotPermittedError(f"a {lease.role} of {session.key.name!r} does not wait to be promoted")
    return _with_lease(session, replace(lease, ready=True))


def dismiss(session: SessionRecord, token: int) -> SessionRecord:
    """Exclude a standby that can no longer take over; its regions stay until its process has ended."""
    lease = _lease(session, token)
    if lease.role is not LeaseRole.STANDBY:
        return session
    return _with_lease(session, replace(lease, role=LeaseRole.FENCED, ready=False))


def candidate(session: SessionRecord) -> Lease | None:
    """Return the first ready standby of an orphaned session, or None."""
    if not session.orphaned or session.writer is not None:
        return None
    return next(iter(ready_standbys(session)), None)


def ready_standbys(session: SessionRecord) -> tuple[Lease, ...]:
    """Return the standbys that could take over at once, in order of arrival."""
    return tuple(lease for lease in session.readers if lease.role is LeaseRole.STANDBY and lease.ready)


def promote(session: SessionRecord, token: int) -> SessionRecord:
    """Make a standby the writer; raise LeaseHeldError if another process is."""
    lease = _lease(session, token)
    if lease.role is LeaseRole.FENCED:
        raise StaleGenerationError(f"fenced off; {session.key.name!r} is at generation {session.generation}")
    check_permitted(session, lease.uid, LeaseRole.WRITER)
    if session.writer is not None:
        if session.writer.token == token:
            return session
        raise LeaseHeldError(f"process {session.writer.process.pid} is the writer of {session.key.name!r}")
    readers = tuple(reader for reader in session.readers if reader.token != token)
    return replace(session, writer=replace(lease, role=LeaseRole.WRITER), readers=readers, orphaned=False)


def buffer_kept(session: SessionRecord) -> SessionRecord:
    """Record that this generation's state buffer is stored, so that the manifest need not contain the carried state."""
    return replace(session, carried=None)


def end_lease(
    session: SessionRecord, token: int, now: float, carried: Carried | None, *, in_order: bool = False
) -> SessionRecord:
    """End a lease; if it is the writer's, its generation ends too, with ``carried`` as its forward state.

    Args:
        session: the session.
        token: the lease's token.
        now: seconds of CLOCK_BOOTTIME.
        carried: required for the writer's lease.
        in_order: the holder gave the lease back, so no standby is promoted.
    """
    if session.writer is not None and session.writer.token == token:
        assert carried is not None
        session = replace(fence(session, carried), orphaned=not in_order)
    readers = tuple(reader for reader in session.readers if reader.token != token)
    idle = now if not readers and session.writer is None else None
    return replace(session, readers=readers, idle_since=idle if session.idle_since is None else session.idle_since)


def expires_at(session: SessionRecord) -> float | None:
    """Return when an unused session is released; None while a lease is held, or if it is kept without limit."""
    if session.idle_since is None or session.keep is None:
        return None
    return session.idle_since + session.keep


def check_writer(session: SessionRecord, token: int) -> Lease:
    """Return the writer's lease if ``token`` is the writer's; else raise StaleGenerationError or NotPermittedError."""
    lease = session.lease(token)
    if lease is None or lease.role is LeaseRole.FENCED:
        raise StaleGenerationError(f"fenced off; {session.key.name!r} is at generation {session.generation}")
    if lease.role is not LeaseRole.WRITER:
        raise NotPermittedError(f"a {lease.role} changes nothing in {session.key.name!r}")
    return lease


def check_new_region(session: SessionRecord, token: int, name: str, layout: RegionLayout) -> None:
    """Raise VaultError if the writer may not create a region of that name and layout now."""
    check_writer(session, token)
    if name in session.regions:
        raise ExistsError(f"{session.key.name!r} has a region {name!r} already")
    if layout.va is None:
        return
    end = layout.va + layout.size
    for region in session.regions.values():
        start = region.layout.va
        if start is not None and start < end and layout.va < start + region.layout.size:
            raise LayoutMismatchError(f"{layout.va:#x} to {end:#x} overlaps region {region.name!r} at {start:#x}")


def add_region(session: SessionRecord, token: int, region: RegionRecord) -> SessionRecord:
    """Add a region and record that its creator maps it."""
    check_new_region(session, token, region.name, region.layout)
    added = replace(session, regions={**session.regions, region.name: region})
    return _with_mapped(added, token, region.name)


def open_region(session: SessionRecord, token: int, name: str, expected: RegionLayout | None) -> SessionRecord:
    """Record that the holder of ``token`` has the region's descriptors.

    Raises:
        WrongGpuError: the region lies on another GPU than expected.
        LayoutMismatchError: it has other sizes or another address than expected.
    """
    lease = _lease(session, token)
    if lease.role is LeaseRole.FENCED:
        raise StaleGenerationError(f"fenced off; {session.key.name!r} is at generation {session.generation}")
    check_layout(_region(session, name), expected)
    return _with_mapped(session, token, name)


def close_region(session: SessionRecord, token: int, name: str) -> SessionRecord:
    """Record that the holder of ``token`` has unmapped the region and closed its descriptors."""
    lease = _lease(session, token)
    _region(session, name)
    return _with_lease(session, replace(lease, regions=tuple(each for each in lease.regions if each != name)))


def seal(session: SessionRecord, token: int, name: str, chunks: Sequence[int] | None) -> SessionRecord:
    """Declare chunks final (None: all); sealing twice is allowed."""
    check_writer(session, token)
    region = _region(session, name)
    count = len(region.layout.sizes)
    wanted = range(count) if chunks is None else chunks
    if any(not 0 <= index < count for index in wanted):
        raise BadRequestError(f"region {name!r} has chunks 0 to {count - 1}")
    sealed = tuple(sorted({*region.sealed, *wanted}))
    return _with_region(session, replace(region, sealed=sealed))


def set_metadata(
    session: SessionRecord, token: int, name: str, metadata: bytes, expected_version: int | None
) -> SessionRecord:
    """Replace the metadata and increment their version; raise SealedError if the whole region is sealed."""
    check_writer(session, token)
    region = _region(session, name)
    if region.is_sealed:
        raise SealedError(f"region {name!r} is sealed")
    if expected_version not in (None, region.metadata_version):
        raise StaleGenerationError(f"the metadata of {name!r} are at version {region.metadata_version}")
    return _with_region(session, replace(region, metadata=metadata, metadata_version=region.metadata_version + 1))


def release_region(session: SessionRecord, token: int, name: str) -> SessionRecord:
    """Remove a region on its writer's behalf; raise LeaseHeldError while another process maps it."""
    check_writer(session, token)
    region = _region(session, name)
    check_unmapped(session, region.name, besides=token)
    return without_region(session, name)


def check_unmapped(session: SessionRecord, name: str | None, besides: int | None = None) -> None:
    """Raise LeaseHeldError if a lease other than ``besides`` maps the region (``name`` None: is on the session)."""
    holders = [
        str(lease.process.pid)
        for lease in session.leases
        if lease.token != besides and (name is None or name in lease.regions)
    ]
    if holders:
        what = f"session {session.key.name!r}" if name is None else f"region {name!r}"
        raise LeaseHeldError(f"{what} is held by process {', '.join(holders)}")


def without_region(session: SessionRecord, name: str) -> SessionRecord:
    """Remove a region even if it is mapped; raise UnknownRegionError if there is none."""
    _region(session, name)
    regions = {each: region for each, region in session.regions.items() if each != name}
    session = replace(session, regions=regions)
    for lease in session.leases:
        if name in lease.regions:
            session = _with_lease(session, replace(lease, regions=tuple(r for r in lease.regions if r != name)))
    return session


def check_layout(region: RegionRecord, expected: RegionLayout | None) -> None:
    """Raise WrongGpuError or LayoutMismatchError if the region differs from ``expected``."""
    if expected is None:
        return
    layout = region.layout
    if expected.gpu is not None and expected.gpu != layout.gpu:
        raise WrongGpuError(f"region {region.name!r} lies on {layout.gpu or 'no GPU'}, not on {expected.gpu}")
    if expected.sizes and expected.sizes != layout.sizes:
        raise LayoutMismatchError(
            f"region {region.name!r} has {len(layout.sizes)} chunks of {layout.size} bytes in all, "
            f"not {len(expected.sizes)} of {expected.size} as expected, or they are cut differently"
        )
    if expected.va is not None and expected.va != layout.va:
        at = "no fixed address" if layout.va is None else hex(layout.va)
        raise LayoutMismatchError(f"region {region.name!r} has {at}, not {expected.va:#x}")


def _region(session: SessionRecord, name: str) -> RegionRecord:
    region = session.regions.get(name)
    if region is None:
        raise UnknownRegionError(f"{session.key.name!r} has no region {name!r}")
    return region


def _lease(session: SessionRecord, token: int) -> Lease:
    lease = session.lease(token)
    if lease is None:
        raise StaleGenerationError(f"the lease on {session.key.name!r} has ended")
    return lease


def _with_region(session: SessionRecord, region: RegionRecord) -> SessionRecord:
    return replace(session, regions={**session.regions, region.name: region})


def _with_mapped(session: SessionRecord, token: int, name: str) -> SessionRecord:
    lease = _lease(session, token)
    return session if name in lease.regions else _with_lease(session, replace(lease, regions=(*lease.regions, name)))


def _with_lease(session: SessionRecord, lease: Lease) -> SessionRecord:
    if session.writer is not None and session.writer.token == lease.token:
        return replace(session, writer=lease)
    readers = tuple(lease if each.token == lease.token else each for each in session.readers)
    return replace(session, readers=readers)

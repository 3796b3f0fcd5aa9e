"""Ceilings of service classes: the share that objectives leave to a class now, for its clients that come."""


class ClassCeilings:
    """The ceilings of one domain's classes; a class with several has the least of them."""

    def __init__(self) -> None:
        self._ceilings: dict[tuple[str, str], float] = {}

    def set(self, service_class: str, owner: str, share: float) -> None:
        """Set the ceiling of ``service_class`` in percent of the SMs on behalf of ``owner``; 100: none."""
        if share >= 100:
            self._ceilings.pop((service_class, owner), None)
        else:
            self._ceilings[service_class, owner] = share

    def of(self, service_class: str | None) -> float | None:
        """Return the ceiling of a class; None if it has none."""
        shares = [share for (name, _), share in self._ceilings.items() if name == service_class]
        return min(shares, default=None)

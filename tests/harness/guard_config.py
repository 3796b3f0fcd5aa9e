"""The configuration file of a guard with one domain, everything it writes under one directory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_TEXT: Final = """\
[guard]
run_directory = "{root}/run"
state_directory = "{root}/state"
log_directory = "{root}/log"
log_format = "json"
{address}
{guard}

[[domain]]
name = "{name}"
pipe_directory = "{public}"
control_binary = "{control}"
{simulated}
{domain}
"""


@dataclass(frozen=True)
class GuardFile:
    """What a test's guard is configured with; the strings are lines of TOML for the table of their name."""

    root: Path
    public: Path
    control: Path
    simulated: bool = True
    """Whether there is no GPU behind it."""
    name: str = "default"
    address: str = "off"
    """Of HTTP; off, as guards of several tests run at a time."""
    guard: str = ""
    domain: str = ""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Further tables, such as `domain.policy`, in this order."""

    def text(self) -> str:
        """The file."""
        filled = _TEXT.format(
            root=self.root,
            public=self.public,
            control=self.control,
            name=self.name,
            address=f'metrics_address = "{self.address}"',
            guard=self.guard,
            simulated="simulated = true" if self.simulated else "",
            domain=self.domain,
        )
        return filled + "".join(f"[{name}]\n{lines}\n" for name, lines in self.tables.items())

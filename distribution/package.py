"""deb and rpm of the program, made by nfpm of what `scripts/install --packaged` lays out."""

import json
from pathlib import Path
from typing import Any, Final

import mpsguard
from distribution.commands import call
from distribution.sources import ROOT

CONFIGURATION: Final = ("etc/mpsguard/mpsguard.toml", "etc/logrotate.d/mpsguard")
"""Files that an administrator changes: an upgrade keeps them."""

FORMATS: Final = ("deb", "rpm")
ARCHITECTURE: Final = "amd64"
"""In Debian's words; nfpm translates them."""

_SCRIPTS: Final = ROOT / "distribution"


def lay_out(stage: Path, tree: Path) -> None:
    """Put every file of the packages below ``stage``, where it goes on a machine.

    Raises:
        BuildError: scripts/install refused.
    """
    call([ROOT / "scripts" / "install", "--packaged", "--program", tree, "--destdir", stage])


def build(kind: str, stage: Path, glibc: str, *, directory: Path, scratch: Path, environment: dict[str, str]) -> Path:
    """Make one package.

    Args:
        kind: "deb" or "rpm".
        stage: What `lay_out` left.
        glibc: The oldest glibc that the program loads with, as "2.35".
        directory: Where the package goes.
        scratch: For nfpm's configuration.
        environment: All variables for nfpm; SOURCE_DATE_EPOCH is the time that the package bears.

    Returns:
        The package.

    Raises:
        BuildError: nfpm refused.
    """
    configuration = scratch / f"nfpm-{kind}.json"
    # Which YAML is a superset of.
    configuration.write_text(json.dumps(_configuration(stage, glibc), indent=2), encoding="utf-8")
    before = set(directory.iterdir())
    command: list[str | Path] = [
        "nfpm",
        "package",
        "--config",
        configuration,
        "--packager",
        kind,
        "--target",
        directory,
    ]
    call(command, environment=environment)
    (made,) = set(directory.iterdir()) - before
    return made


def _configuration(stage: Path, glibc: str) -> dict[str, Any]:
    return {
        "name": "mpsguard",
        "arch": ARCHITECTURE,
        "platform": "linux",
        "version": mpsguard.__version__,
        "release": "1",
        "section": "admin",
        "priority": "optional",
        "maintainer": "mpsguard developers <root@localhost>",
        "description": "Fault resilience for NVIDIA MPS\n"
        "Takes the place of the MPS control daemon: names the client that caused a fault,\n"
        "isolates what can be isolated, and recovers the rest.",
        "license": "Apache-2.0",
        "contents": [*_contents(stage)],
        "overrides": {
            "deb": {
                "depends": [f"libc6 (>= {glibc})", "libexpat1", "libstdc++6", "init-system-helpers"],
                # nvidia-cuda-mps-control comes with the driver, under another name in each distribution.
                "suggests": ["nvidia-cuda-mps", "logrotate"],
                "scripts": _scripts("deb", preinstall="preinst", postinstall="postinst")
                | _scripts("deb", preremove="prerm", postremove="postrm"),
            },
            "rpm": {
                "depends": [f"glibc >= {glibc}", "expat", "libstdc++", "systemd"],
                "scripts": _scripts(
                    "rpm", preinstall="pre", postinstall="post", preremove="preun", postremove="postun"
                ),
            },
        },
        "deb": {"compression": "zstd"},
        "rpm": {"compression": "zstd", "scripts": _scripts("rpm", posttrans="posttrans")},
    }


def _scripts(kind: str, **names: str) -> dict[str, str]:
    return {moment: str(_SCRIPTS / kind / name) for moment, name in names.items()}


def _contents(stage: Path) -> list[dict[str, Any]]:
    """Every file, link and directory of its own, as nfpm wants to be told of them."""
    contents: list[dict[str, Any]] = []
    for path in sorted(stage.rglob("*")):
        name = path.relative_to(stage)
        target = f"/{name}"
        if path.is_symlink():
            contents.append({"src": str(path.readlink()), "dst": target, "type": "symlink"})
        elif path.is_file():
            entry: dict[str, Any] = {"src": str(path), "dst": target}
            entry["file_info"] = {
                "mode": 0o755 if path.stat().st_mode & 0o100 else 0o644,
                "owner": "root",
                "group": "root",
            }
            if str(name) in CONFIGURATION:
                entry["type"] = "config|noreplace"
            contents.append(entry)
        elif "mpsguard" in name.parts:
            contents.append({"dst": target, "type": "dir", "file_info": {"mode": 0o755}})
    return contents

"""The bill of materials: what the program's tree consists of, as a CycloneDX document."""

import json
from pathlib import Path
from typing import Final

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from distribution.commands import BuildError, call
from distribution.interpreter import Interpreter
from distribution.sources import ROOT

NAME: Final = "mpsguard.cdx.json"


def write(path: Path, python: Interpreter, scratch: Path, environment: dict[str, str]) -> None:
    """Write the bill of the tree in which ``python`` lies.

    The Python packages are those that the interpreter itself finds; the interpreter and its libraries are named as the
    Debian packages they come from.

    Args:
        path: The document.
        python: The interpreter of the tree.
        scratch: A directory to work in.
        environment: All variables; SOURCE_DATE_EPOCH is the document's time.

    Raises:
        BuildError: The document does not follow its schema.
    """
    of_packages = scratch / "packages.cdx.json"
    project: list[str | Path] = ["--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--sv", "1.6"]
    command: list[str | Path] = ["cyclonedx-py", "environment", *project, "--output-file", of_packages, python.program]
    call(command, environment=environment)
    bill = json.loads(of_packages.read_text(encoding="utf-8"))
    for package in python.packages:
        url = PackageURL("deb", "debian", package.name, package.version, {"arch": package.architecture}).to_string()
        named = {"type": "library", "name": package.name, "version": package.version, "purl": url, "bom-ref": url}
        bill["components"].append(named)
    document = json.dumps(bill, indent=2)
    refused = JsonStrictValidator(SchemaVersion.V1_6).validate_str(document)
    if refused is not None:
        raise BuildError(f"the bill of materials does not follow its schema: {refused}")
    path.write_text(f"{document}\n", encoding="utf-8")

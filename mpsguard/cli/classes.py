"""`mpsguard-ctl classes`: the service classes and how many clients each has."""

import click

from mpsguard.cli.session import CliSession, with_session
from mpsguard.cli.tables import show_table
from mpsguard.config import ServiceClass
from mpsguard.control_api.messages.classes import Arguments, ClassList


@click.command()
@click.option("--domain", help="Only this domain's.")
@with_session
def classes(session: CliSession, domain: str | None) -> None:
    """List the service classes: what each gives, and how many clients have it."""
    result = session.ask("classes", Arguments(domain), ClassList)
    if session.as_json:
        session.print_json(result)
        return
    show_table(
        session.console,
        ("CLASS", "DOMAIN", "CLIENTS", "SHARE", "PRIORITY", "MEMORY", "DIRECTORY"),
        [
            (
                f"{view.settings.name} (default)" if view.settings.default else view.settings.name,
                view.domain,
                view.clients if view.settings.max_clients is None else f"{view.clients} of {view.settings.max_clients}",
                "-" if view.settings.sm_share is None else f"{view.settings.sm_share:g} %",
                (view.settings.priority or "-").replace("_", " "),
                _memory(view.settings),
                view.directory,
            )
            for view in result.classes
        ],
        optional=("DIRECTORY", "DOMAIN"),
        cut="DIRECTORY",
    )


def _memory(service_class: ServiceClass) -> str:
    return ", ".join(f"{limit} of GPU {gpu}" for gpu, limit in service_class.memory_limit.items()) or "-"

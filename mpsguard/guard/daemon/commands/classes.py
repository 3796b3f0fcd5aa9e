"""The server half of `mpsguard-ctl classes`."""

from mpsguard.guard import config
from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.classes import Arguments, ClassList, ClassView
from mpsguard.guard.daemon.guard import Guard


async def serve(guard: Guard, arguments: Arguments) -> ClassList:
    """The server half."""
    domains = list(guard.domains.values()) if arguments.domain is None else [guard.domain(arguments.domain)]
    return ClassList(
        tuple(
            ClassView(
                domain.name,
                str(config.class_directory(domain.settings.pipe_directory, each.name)),
                each,
                domain.clients.of_class(each.name),
            )
            for domain in domains
            for each in domain.settings.classes
        ),
        tuple(loop.view for domain in domains for loop in guard.objectives.get(domain.name, ())),
    )


HANDLER = Handler("classes", Arguments, serve)

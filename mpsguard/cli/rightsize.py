"""`mpsguard-ctl rightsize`: the least share of the SMs at which a command is hardly slower than with all of them."""

import math
import os
import signal
import sys
from pathlib import Path
from typing import Final

import click

from mpsguard.cli.running_session import RunningSession
from mpsguard.cli.session import CliSession, Exit, with_session
from mpsguard.cli.session_rate import Quantity, RunLimits, SessionRate
from mpsguard.cli.share_runs import InterruptedRunError, ShareRuns, environment_for
from mpsguard.cli.tables import show_table
from mpsguard.guard.control_api.messages.clients import ClientList, ClientsArguments
from mpsguard.guard.control_api.messages.guard import DomainStatus, Status
from mpsguard.guard.control_api.messages.vault import SessionView, ShowArguments
from mpsguard.guard.control_api.protocol import NoArguments
from mpsguard.guard.model import LaneState
from mpsguard.guard.sizing import procedure
from mpsguard.guard.sizing.model import WHOLE
from mpsguard.guard.sizing.procedure import Measure, NotMeasurableError, Point, Purpose, Sizing, SizingPlan

_FEWEST: Final = 3
"""Shares: two for the fit, and one to check it."""
_SIGNALLED: Final = 128
"""Exit codes above it are those of a signal, as in a shell."""


def _shares(_: click.Context, __: click.Parameter, value: str) -> tuple[float, ...]:
    """Read shares in percent, with commas between them."""
    try:
        shares = tuple(sorted({float(part) for part in value.split(",")}))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 10,50,100") from None
    if not all(math.isfinite(share) and 0 < share <= WHOLE for share in shares):
        raise click.BadParameter(f"{value!r}: a share is above 0 and at most 100")
    if len(shares) < _FEWEST:
        raise click.BadParameter(f"{value!r}: two different shares for the fit and one to check it are needed")
    return shares


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Exit codes: 0 a share was found; 1 it cannot be measured; 2 usage; 3 measured, and the times do not fit or "
    "no share that was tried keeps to the slip; 4 no lane; 5 guard unreachable; 128+N interrupted by signal N.",
)
@click.option(
    "--shares",
    metavar="PERCENT,...",
    default="10,50,100",
    show_default=True,
    callback=_shares,
    help="To measure: the smallest and the largest for the fit, the others to check it.",
)
@click.option(
    "--slip",
    type=click.FloatRange(0.1, 100),
    default=4.0,
    show_default=True,
    help="By how many percent it may be slower than at the largest share.",
)
@click.option(
    "--repeats", type=click.IntRange(1, 1000), default=3, show_default=True, help="Measurements at each share."
)
@click.option(
    "--measure",
    type=click.Choice([each.value for each in Quantity]),
    help="What: the run time of CMD (the default without --session); with --session "
    "or --running: the forward states that it publishes (the default), or the requests that it marks.",
)
@click.option("--session", "joins", metavar="NAME", help="The session that CMD joins. CMD is ended afterwards.")
@click.option(
    "--running",
    type=(click.IntRange(0), str),
    metavar="UID SESSION",
    help="Instead of CMD: a session that runs already, with a standby; it gets each share by a live resize.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 86400),
    default=10.0,
    show_default=True,
    help="With --session or --running: for how long it is watched at each share.",
)
@click.option(
    "--warm-up",
    type=click.FloatRange(0, 86400),
    default=2.0,
    show_default=True,
    help="With --session or --running: seconds from its first unit of work until it is watched. For run times: 0 "
    "leaves out the first run, which is not measured.",
)
@click.option(
    "--limit",
    type=click.FloatRange(1, 86400),
    default=600.0,
    show_default=True,
    help="Seconds after which a run has failed.",
)
@click.option("--domain", help="Which one, if there are several.")
@click.option(
    "--output-svg",
    "plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="A plot: the measured points, the model, the chosen share.",
)
@click.argument("command", metavar="-- CMD [ARGS]...", nargs=-1, type=click.UNPROCESSED)
@with_session
def rightsize(
    session: CliSession,
    *,
    shares: tuple[float, ...],
    slip: float,
    repeats: int,
    measure: str | None,
    joins: str | None,
    running: tuple[int, str] | None,
    seconds: float,
    warm_up: float,
    limit: float,
    domain: str | None,
    plot: Path | None,
    command: tuple[str, ...],
) -> None:
    """Find the least share of the SMs at which CMD costs at most --slip percent of time.

    CMD runs several times at each share, which it gets by CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; what it prints goes to the
    standard error. Measure while nothing else uses the GPU. With --running no command is started; the session has its
    own share again afterwards.
    """
    if bool(command) == (running is not None):
        raise click.UsageError("what is to be measured: -- CMD [ARGS]..., or --running UID SESSION")
    if running is not None and joins is not None:
        raise click.UsageError("--session is for CMD; --running names its session itself")
    of_session = joins is not None or running is not None
    quantity = Quantity(measure) if measure else (Quantity.PUBLICATIONS if of_session else Quantity.RUN_TIME)
    if (quantity is Quantity.RUN_TIME) == of_session:
        raise click.UsageError("--measure publications or requests, and --session or --running, need each other")
    if of_session and warm_up + seconds >= limit:
        raise click.UsageError(f"--limit: {limit:g} s are too short for --warm-up and --seconds")
    if plot is not None and not plot.parent.is_dir():
        raise click.UsageError(f"--output-svg: there is no directory {plot.parent}")
    plan = SizingPlan(shares, slip / 100, repeats)
    served = _domain(session, domain)
    others = _check(session, served, plan)
    limits = RunLimits(seconds, warm_up, limit)
    try:
        if running is not None:
            sizing = _size_running(session, running, quantity, limits, plan)
        else:
            environment = environment_for(served.pipe_directory, session.run_directory)
            rate = None if joins is None else SessionRate(session, os.getuid(), joins, quantity, limits)
            runs = ShareRuns(session, command, environment, limits, slip=plan.slip, rate=rate)
            if rate is None and warm_up:
                runs.warm_up(plan.reference)
            sizing = procedure.size(_told(session, runs.measure), plan)
    except NotMeasurableError as error:
        session.fail(Exit.FAILED, str(error))
    except InterruptedRunError as error:
        session.fail(_SIGNALLED + error.number, str(error))
    except KeyboardInterrupt as error:
        number = error.args[0] if error.args else signal.SIGINT
        session.fail(_SIGNALLED + number, f"interrupted by signal {number}")
    if plot is not None:
        _draw(session, sizing, " ".join(command) if running is None else f"session {running[1]}", plot)
    show(session, sizing, quantity, others)
    sys.exit(Exit.OK if sizing.problem is None else Exit.DEGRADED)


def _told(session: CliSession, measure: Measure) -> Measure:
    """Return ``measure``, with a line for each measurement."""

    def measured(share: float) -> float:
        taken = measure(share)
        _say(session, f"{share:g} %: {_time(taken)}")
        return taken

    return measured


def _size_running(
    session: CliSession, running: tuple[int, str], quantity: Quantity, limits: RunLimits, plan: SizingPlan
) -> Sizing:
    def interrupted(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    # As Ctrl-C: the session does not keep the share of the moment.
    signal.signal(signal.SIGTERM, interrupted)
    shown = session.ask("vault_show", ShowArguments(*running), SessionView)
    here = session.ask("clients", ClientsArguments(), ClientList).clients
    share = next((each.sm_share for each in here if each.process.pid == shown.summary.writer), None)
    rest = plan.reference if share is None else share
    rate = SessionRate(session, *running, quantity, limits)
    with RunningSession(session, rate, limits, slip=plan.slip, rest=rest) as measured:
        return procedure.size(_told(session, measured.measure), plan)


def _domain(session: CliSession, name: str | None) -> DomainStatus:
    there = session.ask("status", NoArguments(), Status).domains
    named = {each.name: each for each in there}
    if name is None and len(there) == 1:
        return there[0]
    if name not in named:
        what = "--domain: which one?" if name is None else f"--domain: no domain {name!r};"
        session.fail(Exit.USAGE, f"{what} there are: {', '.join(named)}")
    return named[name]


def _check(session: CliSession, served: DomainStatus, plan: SizingPlan) -> int:
    """Exit if a domain cannot give the shares; return how many other clients it has, which make the times wrong."""
    lane = served.lane
    if lane.state in (LaneState.FAULT, LaneState.FAILING, LaneState.DOWN):
        session.fail(Exit.FAULT, f"domain {served.name}: its lane is {lane.state}: {lane.reason}")
    ceiling = lane.settings.active_thread_percentage
    if ceiling is not None and plan.reference > ceiling:
        session.fail(
            Exit.USAGE,
            f"--shares: domain {served.name} gives {ceiling:g} % at most (active_thread_percentage), "
            f"so {plan.reference:g} % cannot be measured",
        )
    others = session.ask("clients", ClientsArguments(served.name), ClientList).clients
    if others:
        _say(session, f"note: {len(others)} other clients use the GPU: they make the times longer, and less alike")
    return len(others)


def _say(session: CliSession, text: str) -> None:
    if not session.as_json:
        click.echo(f"mpsguard-ctl rightsize: {text}", err=True)


def _draw(session: CliSession, sizing: Sizing, title: str, plot: Path) -> None:
    # Only here: a report's colours bring all of a report with them.
    from mpsguard.guard.report import sizing_plot  # noqa: PLC0415

    try:
        plot.write_text(sizing_plot.draw(sizing, title), encoding="utf-8")
    except OSError as error:
        session.fail(Exit.FAILED, f"{plot}: {error.strerror}")


def show(session: CliSession, sizing: Sizing, quantity: Quantity, others: int) -> None:
    """Print what was found out: a table and the conclusion, or JSON; ``others``: clients that were there before."""
    if session.as_json:
        chosen = sizing.chosen
        session.print_json(
            {
                "measure": quantity.value,
                "share": sizing.share,
                "freed": None if sizing.share is None else sizing.plan.reference - sizing.share,
                "slip": None if chosen is None else chosen.slip,
                "problem": sizing.problem,
                "other_clients": others,
                "model": sizing.model,
                "r_squared": sizing.r_squared,
                "plan": sizing.plan,
                "points": sizing.points,
            }
        )
        return
    show_table(
        session.console,
        ("SHARE", "FOR", "MEASURED", "SPREAD", "PREDICTED", "ERROR", "SLIP"),
        [
            (
                f"{point.share:g} %",
                point.purpose.value,
                _time(point.seconds),
                f"{100 * point.spread:.1f} %" if len(point.times) > 1 else "-",
                _time(point.predicted),
                "-" if point.purpose is Purpose.FIT else _signed(point.error),
                _signed(point.slip),
            )
            for point in sizing.points
        ],
        optional=("SPREAD",),
    )
    for line in _conclusion(sizing):
        session.console.print(line, markup=False, highlight=False)


def _conclusion(sizing: Sizing) -> list[str]:
    fit = "" if sizing.r_squared is None else f", R² {sizing.r_squared:.3f}"
    sign = "-" if sizing.model.b < 0 else "+"
    floor = "" if sizing.model.floor is None else f", {sizing.model.floor:.4g} s at least"
    lines = [f"time = {sizing.model.m:.4g} s / t {sign} {abs(sizing.model.b):.4g} s{floor}, t = share / 100 %{fit}"]
    noisy = [point for point in sizing.points if point.spread > sizing.plan.slip]
    if noisy:
        lines.append(f"times at {_listed(noisy)} differ by more than the slip: measure with more --repeats")
    lines.append(_verdict(sizing))
    return lines


def _verdict(sizing: Sizing) -> str:
    chosen, allowed = sizing.chosen, f"{100 * sizing.plan.slip:g} % allowed"
    if chosen is None:
        return f"no share found: {sizing.problem}"
    whole = sizing.plan.reference
    if chosen.share == whole:
        return f"{whole:g} % is needed: every smaller share costs more ({allowed})"
    cost = f"{100 * abs(chosen.slip):.1f} % {'slower' if chosen.slip >= 0 else 'faster'} than {whole:g} %"
    return f"{chosen.share:g} % is enough: {cost} ({allowed}); frees {whole - chosen.share:g} % of the SMs"


def _listed(points: list[Point]) -> str:
    return ", ".join(f"{point.share:g} %" for point in points)


def _signed(fraction: float) -> str:
    """Return a fraction as percent with its sign; what rounds to 0 has a plus."""
    return f"{round(100 * fraction, 1) + 0.0:+.1f} %"


def _time(seconds: float) -> str:
    """Return a time with four digits, in the unit in which it is above 1."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"

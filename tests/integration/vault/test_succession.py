"""Which process goes on when a writer has ended: over the real socket, with processes that really die."""

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from mpsguard import client
from mpsguard.client import LeaseRole, Session
from mpsguard.vault.server.early_deaths import EARLY, EarlyDeath
from mpsguard.vault.server.transitions import ready_standbys
from mpsguard.vault.wire.address import SOCKET_VARIABLE
from mpsguard.vault.wire.errors import UnknownSessionError, VaultError
from mpsguard.vault.wire.state_buffer import State
from mpsguard.vault.wire.supervisor_wire import ROLE_VARIABLE
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.vault.running import REPOSITORY, ThreadedVault, VaultProcess

WRITER = """
import sys
from mpsguard import client
session = client.Session("s")
session.publish(b"the last words")
print("published", flush=True)
sys.stdin.read()
raise SystemExit(int(sys.argv[1])) if len(sys.argv) > 1 else 0
"""

STANDBY = """
from mpsguard import client
with client.join("s") as session:
    print("joined", flush=True)
    session.ready()
    print(session.role, session.generation, session.state().decode(), flush=True)
"""


def start(code: str, socket: str, *arguments: str, role: str = "active") -> "subprocess.Popen[str]":
    environment = os.environ | {SOCKET_VARIABLE: socket, ROLE_VARIABLE: role}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        cwd=REPOSITORY,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


class Waiting:
    """A standby that waits on a thread of its own until it is the one."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.promoted: bool | None = None
        self.refused: VaultError | None = None
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        try:
            self.promoted = self.session.ready(PATIENCE)
        except VaultError as error:
            self.refused = error

    def join(self) -> bool | None:
        self._thread.join()
        return self.promoted


def is_ready(vault: ThreadedVault, count: int) -> bool:
    session = next(iter(vault.vault.store.sessions.values()))
    return sum(lease.ready for lease in session.leases) == count


def test_a_standby_of_a_session_that_is_released_waits_no_more(vault: ThreadedVault) -> None:
    with vault.session(), vault.standby() as standby:
        waiting = Waiting(standby)
        wait_for("it is ready", lambda: vault.call(lambda: is_ready(vault, 1)))
        vault.call(
            lambda: vault.vault.lifetimes.release_by_command(next(iter(vault.vault.store.sessions)), None, force=True)
        )
        assert waiting.join() is None
        assert isinstance(waiting.refused, UnknownSessionError)


def test_a_killed_writer_is_followed_by_the_standby_that_was_ready_first(vault: ThreadedVault) -> None:
    with start(WRITER, vault.socket) as writer:
        assert line(writer) == "published"
        with vault.standby() as not_ready, vault.standby() as first, vault.standby() as second:
            waiting = Waiting(first)
            wait_for("the first is ready", lambda: vault.call(lambda: is_ready(vault, 1)))
            other = Waiting(second)
            wait_for("both are ready", lambda: vault.call(lambda: is_ready(vault, 2)))
            writer.send_signal(signal.SIGKILL)
            assert waiting.join()
            state = first.latest()
            assert state is not None
            assert (state.state, first.role, first.generation) == (b"the last words", LeaseRole.WRITER, 2)
            assert first.publish(b"and on") > 0
            # The next in line, once the first one's time has come as well.
            first.close(in_order=False)
            assert other.join()
            assert (not_ready.role, second.generation) == (LeaseRole.STANDBY, 3)


def test_a_standby_that_is_ready_too_late_goes_on_at_once(vault: ThreadedVault) -> None:
    with vault.session() as writer, vault.standby() as standby:
        writer.close(in_order=False)
        wait_for("the lease has ended", lambda: vault.call(lambda: _orphaned(vault)))
        assert standby.ready(PATIENCE)
        assert standby.ready(0)


@pytest.mark.parametrize("silent", [False, True])
def test_a_standby_without_a_guard_waits_for_its_promotion_no_longer_than_it_said(silent: bool) -> None:
    """The session's own deadline is much longer; ``silent``: a process listens there, and answers nothing."""
    with ThreadedVault() as vault:
        with vault.session() as writer, vault.standby(deadline=2 * PATIENCE) as standby:
            told: list[bool] = []
            waiting = threading.Thread(target=lambda: told.append(standby.wait_for_promotion(0.2)))
            vault.run(vault.server.close())
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                if silent:
                    os.unlink(vault.socket)
                    listener.bind(vault.socket)
                    listener.listen()
                waiting.start()
                waiting.join(PATIENCE)
                assert told == [False]
            writer.close()
        vault.storage.empty()


def test_no_standby_follows_a_writer_that_left_in_order(vault: ThreadedVault) -> None:
    with vault.session() as writer, vault.standby() as standby:
        writer.close()
        assert not standby.ready(0)
        with vault.session() as successor:
            successor.close(in_order=False)
            assert standby.ready(PATIENCE)


def test_an_exception_leaves_an_orphan(vault: ThreadedVault) -> None:
    with vault.session() as keeper_of_the_name:
        keeper_of_the_name.close()
    standby = vault.standby()
    with pytest.raises(ZeroDivisionError), vault.session():
        raise ZeroDivisionError
    with standby:
        assert standby.ready(PATIENCE)


@pytest.mark.parametrize(("code", "followed"), [("0", False), ("3", True)])
def test_the_way_a_with_block_is_left_counts(vault: ThreadedVault, code: str, followed: bool) -> None:
    with vault.session() as first:
        first.close()
    standby = vault.standby()
    with pytest.raises(SystemExit), vault.session():
        raise SystemExit(int(code))
    with standby:
        assert standby.ready(PATIENCE if followed else 0) == followed


def test_a_reader_is_no_standby_and_one_that_was_fenced_off_is_none_any_more(vault: ThreadedVault) -> None:
    with vault.session() as writer, vault.session(role=LeaseRole.READER) as reader:
        with pytest.raises(client.NotPermittedError):
            reader.ready(0)
        assert writer.ready(0)
        vault.call(lambda: vault.vault.fence(next(iter(vault.vault.store.sessions))))
        wait_for("it has heard", lambda: _hears(writer))
        with pytest.raises(client.StaleGenerationError):
            writer.ready(0)


def test_the_standby_of_a_writer_that_died_while_no_guard_ran_goes_on_with_the_next_guard() -> None:
    with VaultProcess() as vault, start(WRITER, vault.socket) as writer:
        assert line(writer) == "published"
        with start(STANDBY, vault.socket, role="standby") as standby:
            assert line(standby) == "joined"
            vault.kill()
            writer.kill()
            writer.wait()
            vault.start()
            assert line(standby) == "writer 2 the last words"


def test_a_state_is_read_while_another_thread_sees_the_promotion(
    vault: ThreadedVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread's part is done in the middle of the reading one's: so it is the same every time."""
    with vault.session() as writer, vault.standby() as standby:
        writer.publish(b"the last words")
        forward = standby._forward
        assert forward is not None

        def read_when_promoted() -> State | None:
            monkeypatch.undo()
            waiting = Waiting(standby)
            wait_for("it is ready", lambda: vault.call(lambda: is_ready(vault, 1)))
            writer.close(in_order=False)
            assert waiting.join()
            return forward.latest()

        monkeypatch.setattr(forward, "latest", read_when_promoted)
        state = standby.latest()
        assert state is not None
        assert (state.state, standby.generation) == (b"the last words", 2)


def test_a_closed_session_says_that_it_is_closed(vault: ThreadedVault) -> None:
    session = vault.session()
    session.publish(b"state")
    session.close()
    for use in (session.state, lambda: session.publish(b"more"), lambda: session.generation):
        with pytest.raises(client.StaleGenerationError, match="closed"):
            use()


def test_ends_shortly_after_a_promotion_are_reported_and_others_are_not() -> None:
    told: list[EarlyDeath] = []
    clock = [0.0]
    with ThreadedVault(now=lambda: clock[0], on_early_death=told.append) as vault:
        with vault.session() as first, vault.standby() as second, vault.standby() as third:
            for writer, standby in ((first, second), (second, third)):
                waiting = Waiting(standby)
                wait_for("it is ready", lambda: vault.call(lambda: _has_ready_standby(vault)))
                writer.close(in_order=False)
                assert waiting.join()
            assert [death.in_a_row for death in told] == [1]
            clock[0] = EARLY
            third.close(in_order=False)
            wait_for("its lease has ended", lambda: vault.call(lambda: _orphaned(vault)))
        assert [death.in_a_row for death in told] == [1]
        assert vault.call(lambda: vault.vault.counters().early_deaths) == 1
        vault.storage.empty()


def test_a_role_that_there_is_not_is_said_to_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROLE_VARIABLE, "understudy")
    with pytest.raises(client.BadRequestError, match="neither active nor standby"):
        client.join("s")


def _has_ready_standby(vault: ThreadedVault) -> bool:
    return bool(ready_standbys(next(iter(vault.vault.store.sessions.values()))))


def _orphaned(vault: ThreadedVault) -> bool:
    return next(iter(vault.vault.store.sessions.values())).orphaned


def _hears(session: Session) -> bool:
    try:
        session.state()
        list(session.names())
    except client.VaultError:
        pass
    return session.role is LeaseRole.FENCED

"""Root of a container is no root: it gives no commands, has a share as every user has, and no session but its own."""

import os
from contextlib import ExitStack

import pytest

import mpsguard.client as vault
from tests.hostile import container_root
from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=40, reason="attacks a real guard"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="being root of a container needs root"),
]

COMMANDS = """
def replies(line, then=lambda: None):
    sock = connect("control_privileged")
    introduce(sock, 4)
    then()
    command(sock, line)
    sock.send(struct.pack("<q", 0))
    said = []
    # Each line has the number 0 before it; the exit status has another one.
    while data := sock.recv(65536):
        if struct.unpack_from("i", data)[0]:
            break
        said.append(data[4:].rstrip(b"\\0\\n").decode())
    return said

"""
EACH = """
for line in sys.argv[2:]:
    tell("answered", lines=replies(line))
"""
ENTERS = """
def enter_a_container():
    if ctypes.CDLL(None).unshare(1 << 28):  # CLONE_NEWUSER
        raise OSError("unshare")

tell("answered", lines=replies("set_default_active_thread_percentage 10", enter_a_container))
"""
LOCK = """
lock = os.open(os.path.join(PUBLIC, "control_lock"), os.O_RDWR)
fcntl.lockf(lock, fcntl.LOCK_EX)
tell("locked")
signal.pause()
"""
CONNECTIONS = """
held = []
try:
    for _ in range(int(sys.argv[2])):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(os.path.join(PUBLIC, "control"))
        held.append(sock)
finally:
    tell("connected", count=len(held))
signal.pause()
"""
SESSION = """
try:
    owner = int(sys.argv[4]) if sys.argv[4:] else None
    session = vault.Session("weights", role=vault.LeaseRole(sys.argv[3]), owner=owner, socket=sys.argv[2])
except vault.VaultError as error:
    tell("refused", error=type(error).__name__)
else:
    tell("attached", regions=list(session.names()))
    signal.pause()
"""


@pytest.mark.parametrize("kind", container_root.KINDS)
def test_it_gives_no_commands(kind: str) -> None:
    with container_root.KINDS[kind]() as within, Guarded() as guarded:
        guarded.start()
        victim = guarded.client()
        victim.expect("started")
        lines = (
            "set_default_active_thread_percentage 10",
            f"terminate_client {guarded.lane()['servers'][0]['process']['pid']} {victim.pid}",
            "quit -t 1",
        )
        attacker = attack(guarded, COMMANDS + EACH, *lines, uid=0, within=within)
        for _ in lines:
            assert "privilege" in "".join(attacker.next()["lines"])
        assert victim.process.poll() is None
        assert guarded.lane()["state"] == "ACTIVE"
        assert guarded.lane()["settings"]["active_thread_percentage"] is None
        assert guarded.ui("get_default_active_thread_percentage").stdout.strip() == "100.0"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        *[(kind, "10.0") for kind in ("pid namespace", "control group")],
        *[(kind, "privilege") for kind in ("container", "capabilities", "user namespace")],
    ],
)
def test_it_gives_commands_if_it_is_privileged_and_such_are_trusted(kind: str, said: str) -> None:
    with container_root.KINDS[kind]() as within, Guarded(policy="privileged_containers = true") as guarded:
        guarded.start()
        told = attack(guarded, COMMANDS + EACH, "set_default_active_thread_percentage 10", uid=0, within=within).next()
        assert said in "".join(told["lines"])


def test_root_that_enters_a_container_gives_none_from_then_on() -> None:
    with Guarded() as guarded:
        guarded.start()
        assert "privilege" in "".join(attack(guarded, COMMANDS + ENTERS, uid=0).next()["lines"])
        assert guarded.lane()["settings"]["active_thread_percentage"] is None


def test_root_gives_commands_still() -> None:
    with Guarded() as guarded:
        guarded.start()
        assert guarded.ui("set_default_active_thread_percentage 10").stdout.strip() == "10.0"
        assert guarded.lane()["settings"]["active_thread_percentage"] == 10


def test_it_holds_no_lock_that_a_guard_waits_for() -> None:
    with container_root.in_container() as within, Guarded() as guarded:
        guarded.start()
        guarded.stop()
        attack(guarded, LOCK, uid=0, within=within).expect("locked")
        guarded.start()
        guarded.client().expect("started")


def test_it_has_a_users_share_of_the_connections() -> None:
    with container_root.in_container() as within, Guarded(policy="max_connections = 64") as guarded:
        guarded.start()
        assert attack(guarded, CONNECTIONS, "64", uid=0, within=within).expect("connected")["count"] == 64
        # Served or not, the guard has seen all of them once it has served a client that came later.
        guarded.client().expect("started")
        # That client's own one may not have been closed yet.
        assert 0 < guarded.metric("mpsguard_open_connections", domain="default") <= 16 + 1


def test_it_has_sessions_of_its_own_and_no_other_ones() -> None:
    with ExitStack() as ends:
        one, other = (ends.enter_context(container_root.in_container()) for _ in range(2))
        guarded = ends.enter_context(Guarded())
        guarded.start()
        path = str(guarded.run_directory / "vault.sock")
        session = ends.enter_context(vault.Session("weights", socket=path))

        def tries(role: str, *owner: str, within: container_root.Prefix = one) -> dict[str, object]:
            imports = "import mpsguard.client as vault"
            return attack(guarded, SESSION, path, role, *owner, uid=0, within=within, imports=imports).next()

        assert tries("reader", "0") == {"event": "refused", "error": "UnknownSessionError"}
        assert tries("reader") == {"event": "refused", "error": "UnknownSessionError"}
        # One of that name that is its own: root is the writer of the other one still.
        assert tries("writer") == {"event": "attached", "regions": []}
        assert tries("reader") == {"event": "attached", "regions": []}
        assert tries("reader", within=other) == {"event": "refused", "error": "UnknownSessionError"}
        session.publish(b"still the writer")
        owners = [each["uid"] for each in guarded.asked("vault")["sessions"]]
        assert len(owners) == 2
        assert min(owners) == 0
        assert max(owners) > 1 << 32

"""A TCP service that goes on in the middle of an answer: it counts to the number of four digits that a client sends.

mpsguard run --standby 1 --listen 127.0.0.1:7000 -- python -m examples.count_server
"""

import select
import socket
import time

from mpsguard import client
from mpsguard.vault.client import tcp_progress
from mpsguard.vault.client.kept_connections import KeptConnections

DIGITS = 4


def go_on(sock: socket.socket, *, asked: bool) -> bool:
    """Write the next line of an answer. False at its end, and for a peer that sent nonsense or has gone."""
    try:
        written = tcp_progress.written(sock)  # by all processes
        if not (asked or written):
            return True  # the request has not come
        request = sock.recv(DIGITS, socket.MSG_PEEK)  # it stays in the connection: a successor has to find it, too
        if len(request) < DIGITS or not request.isdigit():
            return False
        answer = b"".join(b"%d\n" % number for number in range(1, int(request) + 1))  # the same in every process
        if answer[written:]:
            sock.send(answer[written : answer.index(b"\n", written) + 1])
            return True
        sock.recv(DIGITS)  # close(2) resets a connection with unread bytes, and drops what the peer has not got yet
    except OSError:
        pass  # the peer has gone
    return False


def main() -> None:
    """Serve as the active process; as a standby, wait to become that."""
    listener = socket.socket(fileno=3)  # of --listen; all processes share it
    connections = KeptConnections.from_environment(io_fence=True)
    with client.join("count-server") as session:
        session.ready()  # a standby waits here until it is the active process
        kept = connections.take()  # the connections of the process before, by tag
        while True:
            while (sock := connections.accept(listener, tag := max(kept, default=0) + 1)) is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, DIGITS)  # "ready" means: a whole request
                kept[tag] = sock
            with connections.in_use():  # raises SupersededError in a process that was replaced
                ready, _, _ = select.select(kept.values(), [], [], 0)
                for tag, sock in list(kept.items()):
                    if not go_on(sock, asked=sock in ready):
                        connections.drop(tag)  # before close, or it stays open
                        kept.pop(tag).close()
            time.sleep(0.02)


if __name__ == "__main__":
    main()

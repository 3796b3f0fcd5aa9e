"""Operations of several steps, each cut short at every one of its awaits, and with every system call failing once.

A test describes a scene: what is there before, the operation, and what must hold afterwards. `interruption.sweep` plays
it again and again: the operation's task is cancelled before its first await, then before its second, until it completes
without; and in the first pass of the event loop, then in the second, because what it has handed to a task of its own
goes on between two of its awaits. `faults.sweep` lets the first system call that the operation makes fail, then the
second, likewise.

After each, `bench.Bench` checks that every session has a writer or its leases were told, that the stored bundles match
the manifests, that descriptors and reservations are as before, and that no task or thread is left. The numbers of
operations and points are printed at the end of the run (`conftest.py`).
"""

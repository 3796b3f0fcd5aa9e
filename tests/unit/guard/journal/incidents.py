"""Incidents to record: as many as wanted, each told from the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from mpsguard.guard.evidence import ClientCame, Evidence, Observation, ProcessEnded, Source, Trust, UvmFault, Xid
from mpsguard.guard.incident import Confidence, FaultClass, Incident, Suspect
from mpsguard.guard.model import Client
from mpsguard.linux.identity import ProcessKey

T = TypeVar("T")


def wait(work: Coroutine[Any, Any, T]) -> T:
    """The journal's answer; the deadline is for a thread that died, nothing takes near that long."""
    return asyncio.run(asyncio.wait_for(work, 60))


def process(number: int) -> ProcessKey:
    return ProcessKey(1000 + number, 50_000 + number)


def seen(at: float, what: Observation, who: ProcessKey | None = None) -> Evidence:
    return Evidence(Source.UVM, at, what, process=who, trust=Trust.PROOF, gpu="0000:18:00")


def fault(at: float, number: int = 0) -> Evidence:
    return seen(at, UvmFault(number, "write", "invalid PDE", True), process(number))


def xid(at: float, text: str = "MMU Fault") -> Evidence:
    return seen(at, Xid(31, None, text))


def came(at: float, number: int = 0) -> Evidence:
    return seen(at, ClientCame("default", "default"), process(number))


def ended(at: float, number: int = 0) -> Evidence:
    return seen(at, ProcessEnded(0, None, False, False), process(number))


def incident(
    *evidence: Evidence, culprit: int | None = 0, confidence: Confidence = Confidence.PROVEN, reason: str = "proof"
) -> Incident:
    evidence = evidence or (fault(time.monotonic(), culprit or 0),)
    who = None if culprit is None else Suspect(process(culprit).pid, process(culprit), True)
    times = [piece.observed_at for piece in evidence]
    victims = (Suspect(7, process(7), True),)
    return Incident(
        FaultClass.MMU,
        min(times),
        max(times),
        "0000:18:00",
        "default",
        who,
        (),
        victims,
        confidence,
        reason,
        (31,),
        evidence,
    )


def client(number: int, command: str = "python train.py") -> Client:
    return Client(process(number), 1000, 1000, command, "/", None, None, "default", "default", 1.0)

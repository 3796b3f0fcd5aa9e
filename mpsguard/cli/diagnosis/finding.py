"""One thing that was looked at."""

from enum import StrEnum

import msgspec


class Grade(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """What was found, and what to do about it."""

    subject: str
    grade: Grade
    text: str
    fix: str = ""
    """What an operator can do; "" if nothing has to be done, or nothing can."""


def ok(subject: str, text: str) -> Finding:
    """Return a finding that is well."""
    return Finding(subject, Grade.OK, text)


def note(subject: str, text: str, fix: str = "") -> Finding:
    """Return a finding that limits what the guard can do."""
    return Finding(subject, Grade.NOTE, text, fix)


def problem(subject: str, text: str, fix: str = "") -> Finding:
    """Return a finding because of which something does not work."""
    return Finding(subject, Grade.PROBLEM, text, fix)

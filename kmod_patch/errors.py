"""What can go wrong, each with an exit status of its own. The text is one line: what, where, what is allowed."""


class KmodError(Exception):
    """Something that the user can do something about."""

    status = 1


class TreeError(KmodError):
    """Not a driver tree, or not one that this change knows."""

    status = 3


class RuleError(KmodError):
    """A rule does not match as often as it must."""

    status = 4


class HalfPatchedError(KmodError):
    """The tree is neither stock nor as this tool left it."""

    status = 5


class ToolError(KmodError):
    """A program that is needed is missing, or fails."""

    status = 6


class KernelError(KmodError):
    """No headers for the kernel, or it would not load what is built."""

    status = 7


class BuildError(KmodError):
    """The module does not compile."""

    status = 8

"""What the tensors of a snapshot hold. PyTorch is not imported here: every worker of the tests imports this file."""

from typing import Final

FACTOR: Final = 48271
"""Element ``i`` is ``i * FACTOR + salt``, in 32 bits."""

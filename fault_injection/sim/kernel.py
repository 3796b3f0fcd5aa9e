"""The message of a simulated client to its server, `run this kernel`; the answer is an int32, a CUDA error or 0.

This part is the simulation's own: the vendor's client and server share memory here, which no other process sees.
"""

import struct

KERNEL = struct.Struct("=d16s")
"""Duration in seconds and the fault it runs into, if any."""

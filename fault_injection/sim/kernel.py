"""What a simulated client says to its server: `run this kernel`; the answer is an int32, a CUDA error or 0.

This part is the simulation's own. The vendor's client and server share memory here, and nothing of it is visible to
anybody else.
"""

import struct

KERNEL = struct.Struct("=d16s")
"""Duration in seconds and the fault it runs into, if any."""

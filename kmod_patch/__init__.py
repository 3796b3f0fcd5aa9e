"""The change to the open nvidia-uvm module that keeps a client's memory fault with the client, and the tool for it.

`source/` holds our own C files, `rules/` the Coccinelle rules that hook them into a driver tree by meaning. This
package does not import mpsguard: a machine that builds kernel modules need not have the guard.
"""

from typing import Final

VERSION: Final = "1.0"
"""Of the change; part of the DKMS package's version, and of the module (`uvm_fault_isolation_version`)."""

"""A takeover without a GPU: real processes, a real vault and supervisor, real connections; only the GPU is simulated.

Memory is a memfd where a GPU's would be, and a token is a checksum of what lies in it. Everything else is what runs on
a GPU machine: `mpsguard run --standby`, the vault, the client library.
"""

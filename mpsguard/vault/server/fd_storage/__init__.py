"""Storage of the vault's descriptors while no guard runs: the service manager, or a holder process."""

"""Where descriptors of the vault are kept while no guard runs: the service manager, or a holder process."""

"""The guard: a daemon in the place of the MPS control daemon, what starts in the vendor's name, and the reporter."""

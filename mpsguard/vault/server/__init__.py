"""The vault in the guard's process: sessions, leases, and the descriptors that outlive their programs."""

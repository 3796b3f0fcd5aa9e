"""What the vault's server, its clients and the supervisor say to each other, and the memory that they share."""

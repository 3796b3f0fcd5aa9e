"""`mpsguard run`: supervises a program, its standby, and the connections that outlive both."""

"""`mpsguard pool`: one user's process that keeps images in memory, for programs that start fast."""

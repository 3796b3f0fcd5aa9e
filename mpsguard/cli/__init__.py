"""The command lines `mpsguard` and `mpsguard-ctl`, one file a command."""

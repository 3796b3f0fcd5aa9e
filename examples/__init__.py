"""Programs that use mpsguard's client library."""

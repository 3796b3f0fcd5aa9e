"""Programs that use mpsguard's client library for real work."""

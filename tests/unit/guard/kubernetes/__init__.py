"""Tests of mpsguard.guard.kubernetes."""

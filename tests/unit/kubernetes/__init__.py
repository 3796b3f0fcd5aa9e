"""Tests of mpsguard.kubernetes."""

"""The commands of `mpsguard-ctl image`, one file for each, and for import and export."""

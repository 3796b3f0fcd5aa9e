"""The screen of `mpsguard-ctl top`: what the guard says, as rows, in a terminal."""

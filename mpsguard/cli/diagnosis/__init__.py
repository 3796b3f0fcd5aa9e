"""What `mpsguard-ctl doctor` looks at; every function only reads."""

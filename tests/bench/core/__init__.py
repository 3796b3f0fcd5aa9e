"""What every suite needs: daemons, clients, statistics. Standard library and `mpsguard.linux` only."""

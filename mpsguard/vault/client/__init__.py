"""What an application's process holds of the vault; its entrance is `mpsguard.client`."""

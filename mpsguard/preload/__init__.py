"""The preload for unmodified programs: `libmpsguard.so`, and how to switch it on. See `docs/guides/preload.md`."""

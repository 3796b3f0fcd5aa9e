"""Images on disk: regions as pieces that are stored by content, the forward state, and a manifest.

A store (`mpsguard.images.store.store.ImageStore`) is a directory of one user. It needs the extra ``mpsguard[images]``.
"""

"""The claim protocols, one file each, behind the interface of :mod:`gangline.store.claims.protocol`."""

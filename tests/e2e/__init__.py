"""A package, so that what its tests share is over with the last of them."""

"""``pullback check`` and ``pullback bench`` on a GPU."""

"""Arrays of any framework as memory: views, strides, overlaps."""

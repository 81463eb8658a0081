"""How a problem is computed, as data: `choose.choose`. Nothing is imported here, since cached kernels need no plan."""

"""Plans for channels too few to fill vectors: phases, taps or windows lie beside them."""

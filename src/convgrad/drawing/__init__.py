"""Pictures of the arithmetic of an operation: which elements and taps meet in which sum."""

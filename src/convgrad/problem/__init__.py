"""The canonical form that every stage of the compiler works on."""

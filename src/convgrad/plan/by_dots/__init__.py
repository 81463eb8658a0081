"""Plans that multiply pairs of bf16 by dot products of vectors."""

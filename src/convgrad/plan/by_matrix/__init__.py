"""Plans that multiply pieces of bf16 on a matrix unit, and what plans by dot products share with them."""

"""Plans that read planes, rows or matrices where they lie, and pack none of them."""

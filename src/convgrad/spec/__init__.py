"""What an operation means: its schema, the rules that relate its shapes, and its definition in NumPy."""

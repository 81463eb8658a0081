"""From arrays of any kind to addresses, and back."""

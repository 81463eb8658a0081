"""Plans for one channel per group, channels last or, by planes, channels first."""

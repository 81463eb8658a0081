"""Plans for anything: vectors along channels, across groups or along outputs, packed block by block."""

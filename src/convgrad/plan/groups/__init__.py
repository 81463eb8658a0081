"""Plans for groups of few channels: vectors hold several groups."""

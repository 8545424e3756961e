"""Secret sharing: rings, the servers' common randomness, dealing and reconstruction."""

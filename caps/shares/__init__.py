"""Numbers split among servers: the rings, the randomness servers have in common, dealing and putting together."""

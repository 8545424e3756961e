"""What the three services have in common: identity, problems, TLS, durable state. The services add routes and work."""

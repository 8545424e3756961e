"""What the three services share: identity, problems, TLS, durable state. Each service adds its routes and its work."""

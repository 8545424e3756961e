"""One of the three compute parties: the MPC engine, its transports, and what runs them."""

"""One of the compute parties: the MPC engine, its transports, and what runs them."""

"""CaPS, the shared library: what holders, MPC servers, the coordinator and clients have in common."""

"""The revisions of an MPC server's tables, in `versions`. A change of the tables is a new one."""

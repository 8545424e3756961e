"""The revisions of the coordinator's tables, in `versions`. A change of the tables is a new one."""

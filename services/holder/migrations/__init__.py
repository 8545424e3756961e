"""The revisions of a holder's tables, in `versions`. A change of the tables is a new one."""

"""For whoever writes protocols: the servers of a study in one process. Nothing that serves imports it."""

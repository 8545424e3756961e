"""For protocol authors: the servers of a study in one process. No service imports it."""

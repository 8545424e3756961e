"""Tables: domains and marginals, schemas and their reading, join keys, rows as they are linked, tags."""

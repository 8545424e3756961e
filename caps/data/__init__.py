"""Tables: domains and marginals, schemas and their reading, join keys, the rows of a join, and tags."""

"""What everything else stands on: canonical JSON, documents, private files, uniform randomness."""

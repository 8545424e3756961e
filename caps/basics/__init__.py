"""What everything else builds on: canonical JSON, documents, private files, schemes, uniform randomness."""

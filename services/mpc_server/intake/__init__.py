"""What comes before a run: studies are approved, contributions arrive, tags are matched, inputs are sealed."""

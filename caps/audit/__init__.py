"""What anybody can check of a release: its signatures, its transcript, its files."""

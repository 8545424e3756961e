"""What anybody can check about a release: its signatures, its transcript, its files."""

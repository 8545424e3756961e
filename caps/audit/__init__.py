"""What anybody can check about a release, or about a run that was aborted: signatures, transcript, files, ledger."""

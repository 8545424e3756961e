"""What a server keeps: its tables and the SQL of each, states, the ledger of privacy loss, files of shares."""

"""What each client holds: rows grouped by client, from frames, arrays and files."""

"""What every room may know: names, ids, limits, errors. No I/O, no clock, no randomness lives here."""

"""The ends of transactions: markers in streams, and the numbers that these refuse from then on."""

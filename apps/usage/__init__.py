"""The ledger: what every ended stream used, summed up by hour and day, priced, shown and announced."""

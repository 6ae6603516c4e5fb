"""What every table shares: entries, kept runs, rows, pages and pictures."""

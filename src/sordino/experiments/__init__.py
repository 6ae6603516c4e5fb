"""The tables of the papers, each one command away: what is trained, what is kept, what is shown."""

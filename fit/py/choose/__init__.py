"""Which remedies a module gets, and how much of each."""

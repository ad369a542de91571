"""What a call costs, measured on a few samples."""

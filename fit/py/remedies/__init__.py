"""The remedies, a file each: what they do once they have been chosen."""

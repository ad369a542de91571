"""The calls that a training loop makes, and what they touch: arguments, generators, attributes."""

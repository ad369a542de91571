"""What the probe sees of each framework: one module a framework, and the parts they share."""

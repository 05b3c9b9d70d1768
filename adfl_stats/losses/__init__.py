"""What a client minimises: families, and sums over its rows at a point."""

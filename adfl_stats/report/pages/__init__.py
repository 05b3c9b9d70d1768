"""Pages to hand to a colleague: one HTML file each, complete in itself."""

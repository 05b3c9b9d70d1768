"""Who listens to whom: the network, how it comes in, what its matrix W says, and generators (`networks`)."""

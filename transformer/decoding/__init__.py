"""Generation: one compiled loop, strategies, constraints."""

"""The parts that every Transformer here is composed of."""

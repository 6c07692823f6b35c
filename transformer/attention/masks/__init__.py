"""Which query may attend to which key: patterns, data terms, their algebra and their analysis."""

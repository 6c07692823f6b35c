"""Which query may attend to which key: patterns, terms of the data, their algebra, and what is known of them."""

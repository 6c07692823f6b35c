"""What a person sees: figures that explain themselves, fonts for every text, and progress on the terminal."""

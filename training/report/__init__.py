"""Reports of a run: metrics, speed, energy, summaries, sweeps."""

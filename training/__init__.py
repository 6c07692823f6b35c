"""What every experiment shares: run, step, state, optimizer, mesh, checkpoints, report, and the config resolver."""

"""The machine: devices, processes, signals, memory."""

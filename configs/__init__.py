"""One file is one experiment; it says only what differs from base.py."""

"""What is measured of a run while it goes on: one file per observer; a new file is found by itself."""

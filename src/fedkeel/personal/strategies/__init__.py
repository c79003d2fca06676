"""One file per way to personalise a finished model; a new file is found by itself."""

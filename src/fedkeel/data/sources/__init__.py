"""One file per source of rows, with its own settings; a new file is found by itself."""

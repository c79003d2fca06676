"""One file per kind of split, with its own settings; a new file is found by itself."""

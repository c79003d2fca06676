"""One file per kind of small module that adapts a dual encoder; a new file is found by itself."""

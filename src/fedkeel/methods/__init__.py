"""One file per method, in families that share what they read; a new file is found by itself."""

"""Real machines: a server and sites that have signed a contract."""

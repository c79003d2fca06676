"""Real sites over Flower: the server and the sites are processes that speak through a SuperLink."""

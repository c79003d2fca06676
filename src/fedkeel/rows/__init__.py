"""What methods read: encoded features, inputs that a network reads in every step, items of a dual encoder."""

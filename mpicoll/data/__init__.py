"""What travels: arrays of any kind as one description, their dtypes, layouts and reductions."""

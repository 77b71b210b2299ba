"""A deployment of yesterday: it has none of the workflows."""

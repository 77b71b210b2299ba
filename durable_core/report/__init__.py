"""A run as one page that can be opened anywhere: `durable report`."""

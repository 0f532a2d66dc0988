"""How the work is laid out on a device: precision of products, streams, what is kept there and what is read ahead."""

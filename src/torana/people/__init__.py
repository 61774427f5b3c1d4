"""Who someone is, what they may, and what is kept of them."""

"""Public tables for people, as a page, charts or text. Everything in it is public."""

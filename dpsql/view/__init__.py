"""A histogram for people: as a page, as charts, as text. Everything in it is public."""

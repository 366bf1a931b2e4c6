"""Sketches of a column: its largest values and the count of any value, in fixed memory: what is asked, its numbers, its cost. Steps: `dpsql.udfs.sketch`."""

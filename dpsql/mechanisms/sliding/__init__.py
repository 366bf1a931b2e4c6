"""Sliding windows for ever over listed keys: what is asked, its numbers, its cost, its sentences. Steps: `dpsql.udfs.sliding`."""

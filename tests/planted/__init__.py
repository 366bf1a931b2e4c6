"""Faults that the tests must find, as a list: `faults.toml`. `python -m tests.planted` plants each in a copy of the tree and asks the tests.

A test suite that is made smaller, or faster, must find as many as before. An entry says what is broken, the edit that breaks it, the tests
that are said to find it, and the command that runs these tests; or that nothing finds it yet, which is true until it is found. Where a
test plants its own error, the entry names that test and has no edit.
"""

"""First on PYTHONPATH of a job that is to die: every Python process of it, driver and workers, installs the chosen point."""

import os

if os.environ.get("CRASH_POINT") or os.environ.get("CRASH_WITHOUT"):
    from tests.crash import points

    points.install(os.environ)

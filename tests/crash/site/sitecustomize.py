"""First on PYTHONPATH of a job that is to die: every Python process of it, driver and workers, installs what was chosen."""

import os

if any(os.environ.get(name) for name in ("CRASH_POINT", "CRASH_WITHOUT", "CRASH_OFTEN")):
    from tests.crash import points

    points.install(os.environ)

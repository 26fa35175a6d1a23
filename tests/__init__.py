"""Tests. Properties are tried on the same examples in every run, so that a run says something of the change alone.

``HYPOTHESIS_PROFILE=search`` draws other examples each time: that is how new faults are found.
"""

import os

from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True)  # a machine that others use too keeps no time
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

"""Tests: unit and property ones, those on real parts, and the long ones."""

from hypothesis import settings

settings.register_profile("shared", deadline=None)  # a machine that others use too keeps no time
settings.load_profile("shared")

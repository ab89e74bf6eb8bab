"""All that the suite has: see conftest.py."""

from sqlalchemy.testing.suite import *  # noqa: F403

"""Which tests apply to the SDK at hand. A test of a call that an older SDK does not have is not part of that SDK's run.

It is deselected, not skipped: a skip means that something is missing on this machine.
"""

import pytest


def needs(*version):
    """A mark for tests of calls that came with this version of the SDK."""
    return pytest.mark.needs_sdk(version)


def deselect(config, items, sdk):
    """For `pytest_collection_modifyitems`: leaves out what `sdk` does not have."""
    fitting, others = [], []
    for item in items:
        wanted = [mark.args[0] for mark in item.iter_markers("needs_sdk")]
        (fitting if all(sdk >= version for version in wanted) else others).append(item)
    items[:] = fitting
    config.hook.pytest_deselected(items=others)

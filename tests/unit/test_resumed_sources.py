"""From where a restored query reads its stream."""

import json

import pytest

from dpsql.change_feed import FeedForm
from dpsql.config import Source
from dpsql.errors import DataError
from dpsql.streaming.sources import resumed

POSITION = json.dumps({"reservoirVersion": 9, "index": 0, "isStartingVersion": False})


def test_a_feed_with_a_primary_key_goes_on_at_its_last_commit() -> None:
    """Its images are replays, and ignored."""
    feed = Source("accounts", "delta", "accounts", change_feed=FeedForm.DELTA, primary_key=("id",), options=(("startingVersion", "0"),))
    assert resumed(feed, POSITION).options == (("startingVersion", "9"),)
    assert resumed(feed, None) == feed


def test_a_feed_of_copies_is_refused() -> None:
    """Catches: a commit that is read twice and whose rows count twice."""
    feed = Source("accounts", "delta", "accounts", change_feed=FeedForm.DELTA)
    assert resumed(feed, None) == feed
    with pytest.raises(DataError, match="without primary_key: a restored run reads the last commit again"):
        resumed(feed, POSITION)
